"""What the words of a search mean."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue.search import NAMES, Condition, advice, read_search
from cache_engine.evaluator.catalogue.tables import model_shapes

NOW = 1_790_000_000.0


def test_a_whole_name_of_a_model_means_its_shapes_alone() -> None:
    search = read_search("Qwen3-8B bf16")
    assert search.words == "bf16"
    assert search.shapes == (tuple(dict.fromkeys((shape.n, shape.k) for shape in model_shapes("Qwen3-8B"))),)
    assert search.meanings == ()


def test_the_start_of_a_name_means_every_model_that_starts_so() -> None:
    search = read_search("Llama")
    wanted = {(shape.n, shape.k) for shape in model_shapes() if shape.model.startswith("Llama-")}
    assert set(search.shapes[0]) == wanted
    assert search.meanings == ("Llama: shapes of Llama-3.1-8B, Llama-3.1-70B",)


@pytest.mark.parametrize(
    ("word", "targets"),
    [
        ("H100", ("sm_90", "sm_90a")),
        ("l40s", ("sm_80", "sm_86", "sm_89")),  # code of one major version runs on its later chips
        ("a100", ("sm_80",)),
        ("hopper", ("sm_90", "sm_90a")),
        ("Ada", ("sm_89",)),
        ("turing", ("sm_75",)),
    ],
)
def test_a_gpu_means_what_it_runs_and_an_architecture_its_own(word: str, targets: tuple[str, ...]) -> None:
    search = read_search(f"bf16 {word}")
    assert set(targets) <= set(search.targets[0])
    assert {target[:4] for target in search.targets[0]} == {target[:4] for target in targets}
    assert search.words == "bf16"
    assert search.meanings[0].startswith(f"{word}: ")


@pytest.mark.parametrize(
    ("word", "condition"),
    [
        ("n=7168", Condition("n", "=", 7168)),
        ("registers>=200", Condition("registers", ">=", 200)),
        ("Spills>0", Condition("spills", ">", 0)),
        ("groups=256", Condition("batch", "=", 256)),
        ("mode=grouped", Condition("mode", "=", "grouped")),
        ("scales=1x128,128x128", Condition("scales", "=", "1x128,128x128")),
        ("target=sm_90a", Condition("target", "=", "sm_90a")),
        ("dtype=BF16", Condition("dtype", "=", "bf16")),
        ("hits=0", Condition("hits", "=", 0)),
        ("hits!=0", Condition("hits", "!=", 0)),
        ("level=3", Condition("level", "=", 3)),
        ("size>1KB", Condition("size", ">", 1000)),
        ("disk<=1.5MiB", Condition("disk", "<=", 1.5 * 2**20)),
        ("shared>=48kib", Condition("shared", ">=", 48 * 1024)),
        ("size>99999999999999999999TB", Condition("size", ">", 2**62)),
        ("compile_ms>1", Condition("compile", ">", 1.0)),
        ("compile>250us", Condition("compile", ">", 0.25)),
        ("compile<1.5S", Condition("compile", "<", 1500.0)),
        ("compile>=2min", Condition("compile", ">=", 120_000.0)),
        ("created<1d", Condition("created", ">", NOW - 86_400)),
        ("created<=12h", Condition("created", ">=", NOW - 43_200)),
        ("used>30d", Condition("used", "<", NOW - 30 * 86_400)),
        ("used>=2w", Condition("used", "<=", NOW - 14 * 86_400)),
        ("created>=1970-01-03", Condition("created", ">=", 2 * 86_400)),
        ("created<1970-01-03", Condition("created", "<", 2 * 86_400)),
        ("created>1970-01-03", Condition("created", ">=", 3 * 86_400)),
        ("created<=1970-01-03", Condition("created", "<", 3 * 86_400)),
        ("specialise=Exact", Condition("specialise", "=", "exact")),
        ("out=fp32", Condition("out", "=", "fp32")),
        ("config!=64x*", Condition("config", "!=", "64x*")),
        ("name=a=b", Condition("name", "=", "a=b")),
    ],
)
def test_a_field_is_compared(word: str, condition: Condition) -> None:
    assert read_search(word, NOW).conditions == (condition,)


def test_a_day_is_all_moments_of_it() -> None:
    assert read_search("used=1970-01-03").conditions == (
        Condition("used", ">=", 2 * 86_400),
        Condition("used", "<", 3 * 86_400),
    )


@pytest.mark.parametrize(
    "word", ["de", "abc", "deadbeef", "4096x7168", "sm_90", "%", "_", "a_b", "'", "=", "<b>", "1=1"]
)
def test_other_words_are_text(word: str) -> None:
    """Also those that may be the start of a key."""
    search = read_search(word)
    assert (search.words, search.shapes, search.targets, search.conditions) == (word, (), (), ())
    assert not search.patterns


def test_a_word_with_a_star_is_a_pattern() -> None:
    search = read_search("bf16 Tensor_* *64×128* *num_warps=4*")
    assert (search.words, search.patterns) == ("bf16", ("tensor_*", "*64x128*", "*num_warps=4*"))
    assert not search.conditions


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("zzz=3", "there is no field zzz. Fields: m, n, k, "),
        ("hit>0", "Did you mean hits?"),
        ("compile_time>1", "Did you mean compile_ms?"),
        ("num_warps=4", "put it between two *"),
        ("n=", "n takes a whole number, such as n>0"),
        ("n=x", "n takes a whole number"),
        ("hits>-1", "hits takes a whole number"),
        ("hits>٣", "hits takes a whole number"),
        ("hits==0", "hits takes a whole number"),
        ("n=1e3", "n takes a whole number"),
        ("arch>1", "arch takes = or != and a word"),
        ("dtype=", "dtype takes = or != and a word"),
        ("fast_math=maybe", "fast_math takes yes or no"),
        ("size>1XB", "size takes a size, such as size>64KB"),
        ("spills>-1", "spills takes a size"),
        ("compile>fast", "compile takes a time"),
        ("compile_ms>1parsec", "compile_ms takes a time"),
        ("created<5", "created takes <, <=, > or >= and an age"),
        ("created=1d", "created takes <, <=, > or >= and an age"),
        ("used>2026-13-01", "used takes <, <=, > or >= and an age"),
        ("used!=2026-11-01", "used takes <, <=, > or >= and an age"),
        ("a*" * 101, "is too long for a pattern"),
        ("n<1 " * 501, "is too long for a search"),
    ],
)
def test_what_cannot_be_compared_is_refused(word: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        read_search(f"bf16 {word}")


def test_a_refusal_lists_all_fields() -> None:
    with pytest.raises(UsageError, match=re.escape(", ".join(NAMES))):
        read_search("colour=red")


@given(st.text(max_size=60))
@example("hits>" + "9" * 50)
@example("created<" + "9" * 15 + "w")
@example("created<0000-00-00 used<=9999-12-31")
@example("İ=3 hits>")
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        search = read_search(text)
    except UsageError:
        return
    assert set(search.words.split()) <= set(text.split())


def test_advice_names_the_word_to_change_and_what_it_may_have_meant() -> None:
    def matches(text: str) -> int:
        return 0 if "hoper" in text or "sm_9o" in text else 3

    hints = advice("bf16 hoper sm_9o", matches, ["sm_90", "bf16"])
    assert hints[0] == "No kernel matches hoper. Did you mean hopper?"
    assert hints[1].startswith("No kernel matches sm_9o. Did you mean sm_90")
    assert hints[2] == "Without that, 3 kernels would match: bf16"


def test_advice_on_words_that_only_together_find_nothing() -> None:
    assert advice("bf16 sm_75", lambda text: len(text.split()) == 1, []) == [
        "Each word matches kernels, but no kernel matches all of them. Leave one out."
    ]


def test_advice_on_a_comparison_is_about_its_value() -> None:
    def hints(word: str) -> str:
        return advice(word, lambda _: 0, ["bf16", "sm_90"])[0]

    assert hints("dtype=bf17") == "No kernel matches dtype=bf17. Did you mean dtype=bf16?"
    for word in ("size>1GB", "created<1s", "tensor_z*", "m=16"):
        assert hints(word) == f"No kernel matches {word}."

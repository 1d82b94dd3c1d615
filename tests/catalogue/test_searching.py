"""What the words of a search mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.catalogue.searching import Condition, advice, read_search
from cache_engine.catalogue.tables import model_shapes


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
        ("Spills>0", Condition("spill_bytes", ">", 0)),
        ("groups=256", Condition("batch", "=", 256)),
        ("mode=grouped", Condition("mode", "=", "grouped")),
        ("scales=1x128,128x128", Condition("scales", "=", "1x128,128x128")),
        ("target=sm_90a", Condition("arch", "=", "sm_90a")),
        ("dtype=BF16", Condition("dtype", "=", "bf16")),
    ],
)
def test_a_field_is_compared(word: str, condition: Condition) -> None:
    assert read_search(word).conditions == (condition,)


@pytest.mark.parametrize("word", ["de", "abc", "deadbeef", "n=", "n=x", "arch>1", "colour=red", "4096x7168", "sm_90"])
def test_other_words_are_text(word: str) -> None:
    """Also those that may be the start of a key."""
    search = read_search(word)
    assert (search.words, search.shapes, search.targets, search.conditions) == (word, (), (), ())


@given(st.text(max_size=60))
def test_any_text_is_read(text: str) -> None:
    search = read_search(text)
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

"""The search in the header, and each page as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from app.addresses import KIND
from app.components.header import news_words
from app.presenters.command import equal
from app.presenters.palette import MOST, PAGES, places, plain
from cache_engine.cli.main import commands
from cache_engine.settings import SETTINGS
from tests.pages.opening import Open, sound


def _named(text: str) -> list[tuple[str, str]]:
    return [(place.kind, place.name) for place in places(text)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("clean", ("Page", "Clean")),
        ("AUDIT", ("Page", "Log")),
        ("demotion", ("Page", "Log")),
        ("roofline", ("Page", "Predict")),
        ("max_bytes", ("Setting", "max_bytes")),
        ("deepseek-v3", ("Model", "DeepSeek-V3")),
        ("compile llama-3.1-8b", ("Model", "Llama-3.1-8B")),
        ("sm_90a", ("Target", "sm_90a")),
        ("kernels", ("Page", "Kernels")),
    ],
)
def test_what_is_named_so_comes_first(text: str, first: tuple[str, str]) -> None:
    assert _named(text)[0] == first


def test_every_setting_is_found_by_its_name() -> None:
    for setting in SETTINGS:
        assert ("Setting", setting.name) in _named(setting.name)


def test_no_kind_fills_the_list() -> None:
    kinds = [kind for kind, _ in _named("e")]
    assert all(kinds.count(kind) <= MOST for kind in kinds)
    assert not places("no such thing anywhere")
    assert places("") == list(PAGES)


def test_every_page_that_is_named_is_there() -> None:
    root = Path(__file__).parent.parent.parent
    assert all((root / "pages" / f"{place.page}.py").exists() for place in PAGES)


def test_hostile_text_stays_text_where_markdown_is_read() -> None:
    assert plain("a [x](y) `z` :red[w] $v$ <b>") == r"a \[x\]\(y\) \`z\` \:red\[w\] \$v\$ \<b\>"


COMMANDS: list[tuple[str, dict[str, Any], str]] = [
    ("Overview", {}, "stats"),
    ("Overview", {"span": "90 days"}, "stats --by time --since 90d"),
    ("Kernels", {}, "ls"),
    (
        "Kernels",
        {"q": "bf16 4096", "arch": ["sm_90", "sm_80"], "sort": "size on disk", "asc": "true"},
        "ls bf16 4096 --arch=sm_90 --arch=sm_80 --sort=size-on-disk --ascending",
    ),
    ("Kernel", {"key": "3f2a"}, "show 3f2a"),
    ("Kernel", {"cache": "triton=/c/t", "entry": "3f2a"}, "caches show 3f2a --in /c/t"),
    ("Compare", {"a": "3f2a", "b": "91bc"}, "show 3f2a 91bc --part sass"),
    ("Kernels", {"view": "By target"}, "stats --by arch"),
    (
        "Workload",
        {"part": "Of a model", "model": "Qwen3-8B", "archs": "sm_90"},
        "warm Qwen3-8B --dry-run --by=shape --arch=sm_90",
    ),
    ("Workload", {"span": "28 days"}, "demand --since 28d"),
    ("Kernels", {"view": "Other frameworks", "words": "tile"}, "caches ls tile"),
    ("Kernels", {"view": "Triton", "words": "tile", KIND: "triton"}, "caches ls tile --kind=triton"),
    ("Kernels", {"view": "SQL"}, "ls"),
    ("Compile", {}, "compile 4096 7168 2048 --arch sm_80"),
    ("Compile", {"s_m": 64, "s_epilogue": ["relu", "bias"]}, "compile 64 7168 2048 --arch sm_80 --epilogue relu+bias"),
    ("Compile", {"what": "Whole model", "s_model": "Qwen3-8B", "s_tokens": "1"}, "warm Qwen3-8B --arch sm_80 --m 1"),
    ("Predict", {}, "evaluate 4096 7168 2048 --chip H100"),
    ("Predict", {"s_m": 64, "e_chip": "H100", "s_dtype": "fp16"}, "evaluate 64 7168 2048 --dtype fp16 --chip H100"),
    ("Predict", {"s_dtype": "int8"}, "evaluate 4096 7168 2048 --dtype int8 --out-dtype int32 --chip H100"),
    (
        "Predict",
        {"s_dtype": "fp8_e5m2", "s_scales": "1x128,128x128"},
        "evaluate 4096 7168 2048 --dtype fp8 --scales 1x128,128x128 --chip H100",
    ),
    (
        "Predict",
        {
            "e_kind": "Whole model",
            "s_model": "Qwen3-8B",
            "e_tokens": 16,
            "e_tp": 2,
            "e_dp": 4,
            "e_phase": "decode",
            "e_skew": 1,
        },
        "evaluate Qwen3-8B --chip H100 --m=16 --mode=decode --experts=1 --parallel=tp=2,dp=4",
    ),
    ("Predict", {"e_kind": "More", "e_more": "Saved results"}, "evaluations"),
    ("Predict", {"e_kind": "More", "e_kept_out": True}, "calibrate measured.csv --check=kept-out"),
    ("Predict", {"e_kind": "More"}, "calibrate measured.csv --check=all"),
    ("Storage", {"rule": "stale"}, "clean --state=stale"),
    *(
        ("Storage", {"tab": tab}, command)
        for tab, command in (
            ("This store", "clean"),
            ("Integrity", "verify"),
            ("Quarantine", "verify --quarantined"),
            ("Packs", "pack export kernels.gemmpack"),
            ("Results", "evaluations --delete"),
            ("Index", "store sync"),
            ("Settings", "doctor --settings"),
            ("Log", "log"),
        )
    ),
    ("Storage", {"tab": "Log", "kind": ["miss", "eviction", "restored"]}, "log --kind=miss --kind=eviction"),
    ("Storage", {"tab": "Log", "kind": "cleanup run"}, "log --audit"),
]


@pytest.mark.parametrize(("page", "values", "command"), COMMANDS, ids=[command for _, _, command in COMMANDS])
def test_a_page_as_a_command_is_one_that_the_command_line_takes(
    page: str, values: dict[str, Any], command: str
) -> None:
    found = equal(page, values, "sm_80")
    assert found is not None
    assert " ".join(found) == command
    words, verb = list(found), commands
    while isinstance(verb, click.Group) and not (verb.invoke_without_command and not words):
        verb = verb.commands[words.pop(0)]  # type: ignore[assignment]
    verb.make_context(verb.name, words)


@pytest.mark.parametrize("page", ["Kernel", "Compare", "No such page"])
def test_a_page_that_shows_nothing_yet_has_no_command(page: str) -> None:
    assert equal(page, {}, "sm_80") is None


@pytest.mark.parametrize(
    ("page", "asked", "command"),
    [
        ("overview", {}, "stats --by time --since 7d"),
        ("kernels", {"arch": "sm_80"}, "ls --arch=sm_80"),
        ("evaluations", {}, "evaluate 4096 7168 2048 --chip H100"),
        ("compile", {"s_m": "64"}, "compile 64 7168 2048 --arch sm_90"),
        ("admin", {"tab": "Integrity"}, "verify"),
    ],
)
def test_each_page_shows_its_command_on_this_store(
    page: str, asked: dict[str, str], command: str, open_page: Open, compiled_store: Path
) -> None:
    app = sound(open_page(compiled_store, page, **asked))
    assert f"gemm-cache --store {compiled_store} {command}" in [code.value for code in app.code]


def test_a_search_for_an_unknown_field_says_which_there_are(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "overview")
    app.session_state["search-text"] = "hit>0"
    sound(app.button(key="search-button").click().run())
    assert any("there is no field hit. Did you mean hits?" in text.value for text in app.text)
    app = open_page(compiled_store, "overview")
    app.session_state["search-text"] = "hits=0 tensor_*"
    sound(app.button(key="search-button").click().run())
    assert sum(link.proto.page == "kernel" for link in app.get("page_link")) >= 2
    assert not any("field" in text.value for text in app.text)


def test_compare_refuses_a_search_as_kernels_does(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "compare")
    app.text_input(key="pick").set_value("hit>0").run()
    assert any("there is no field hit. Did you mean hits?" in text.value for text in sound(app).text)


def test_news_of_kernels_also_say_that_some_were_replaced() -> None:
    assert [news_words((4, 1), now) for now in ((6, 2), (3, 2), (4, 2))] == [
        "2 new kernels", "1 kernel deleted", "Kernels were replaced",
    ]  # fmt: skip

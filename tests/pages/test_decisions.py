"""The log of Storage: newest first, by kind, by kernel and by problem, as a file, and of a full log."""

from __future__ import annotations

import csv
import io
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.admin import logs as tab
from app.presenters.columns import Column, csv_of
from app.presenters.decisions import counts_text, logged_columns, logged_names, matching
from cache_engine.cache.cache import open_cache
from cache_engine.model.decision import CHOICE, DEMOTION, EVICTION, MISS, PROMOTION, REFUSAL, Decision
from cache_engine.store.journal import append_decisions
from cache_engine.store.layout import StoreLayout
from tests.pages.opening import Open, as_shown, frames, sound
from tests.pages.test_all_pages import HOSTILE

ONE, TWO, THREE = "a1" * 32, "b2" * 32, "c3" * 32
NAMED = {ONE: "gemm_bf16_nt_n4096_k7168_64x64x64", TWO: "gemm_fp16_nt_n512_k256_128x64x32"}
SUM = "1,200 launches expected, 3.2 GPU s saved (predicted), 0.8 s to compile: +2.4 s"
LOG = [
    Decision(kind=MISS, at=1.7e9, key=ONE, name=NAMED[ONE]),
    Decision(kind=CHOICE, at=1.7e9, key=ONE, name=NAMED[ONE], reason="cost model", runner_up="other", margin=0.25),
    Decision(kind=EVICTION, at=1.7e9 + 1, key=ONE, reason="unused for 7 days", by="automatic"),
    Decision(kind=MISS, at=1.7e9 + 2, key=ONE, name=NAMED[ONE]),
    Decision(kind=PROMOTION, at=1.7e9 + 3, key=TWO, name=NAMED[TWO], reason="saves GPU time", detail=SUM),
    Decision(kind=DEMOTION, at=1.7e9 + 4, key=TWO, name=NAMED[TWO], reason="saves less than it costs", detail="=1+1"),
    Decision(kind=REFUSAL, at=1.7e9 + 5, key=THREE, reason="not stored", detail="the disk is full"),
]


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    with open_cache(tmp_path / "store") as cache:
        append_decisions(cache.layout, LOG)
    return tmp_path / "store"


def _table(app: AppTest) -> Any:
    (found,) = [one for one in frames(app) if "What" in one.columns]
    return found


def test_each_decision_says_what_when_why_and_of_which_kernel_newest_first(open_page: Open, logged: Path) -> None:
    app = sound(open_page(logged, "admin", tab="Decisions"))
    table = _table(app)
    assert list(table["What"]) == [one.kind for one in reversed(LOG)]
    assert list(table["Kernel"]) == [THREE[:12], NAMED[TWO], NAMED[TWO], *[NAMED[ONE]] * 4], "an eviction has no name"
    assert table["Reason"][0] == "not stored"
    assert list(table["Details"])[:3] == ["the disk is full", "=1+1", SUM]
    assert table["Reason"][3] == "evicted before", "the cause of a miss is what the log has before it"
    assert (table["Runner-up"][5], table["Margin"][5], table["By"][4]) == ("other", 0.25, "automatic")
    assert table["When"][0] == 1.7e9 + 5
    assert list(table["Kernel →"])[:1] == [f"kernel?key={THREE}&part=History"]
    assert "7 entries. miss: 2, " in app.text[0].value


def test_the_address_asks_for_kinds_and_words(open_page: Open, logged: Path) -> None:
    app = sound(open_page(logged, "admin", tab="Decisions", kind=MISS, about="4096x7168 EVICTED"))
    assert list(_table(app)["Reason"]) == ["evicted before"]
    assert not app.warning
    app.multiselect(key="kind").set_value([PROMOTION]).run()
    assert "Nothing matches" in sound(app).info[0].value
    assert any("promote --dry-run" in one.value for one in app.code)
    app.text_input(key="about").set_value("b2b2").run()
    assert list(_table(sound(app))["Details"]) == [SUM]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("512x256", [PROMOTION, DEMOTION]),
        ("8x512x256", [PROMOTION, DEMOTION]),
        ("12x256", []),
        ("128x64x32", [PROMOTION, DEMOTION]),
        ("n4096 automatic", [EVICTION]),
        ("c3c3", [REFUSAL]),
        ("3c3c", []),
        ("DISK full", [REFUSAL]),
        ("launches gpu", [PROMOTION]),
    ],
)
def test_a_word_is_of_the_name_the_shape_the_key_or_the_reason(text: str, kinds: list[str]) -> None:
    assert [one.kind for one in matching(LOG, logged_names(LOG), (), text)] == kinds


def test_the_file_has_whole_keys_all_rows_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of(LOG, [Column("Key", "key"), *logged_columns(NAMED)], UTC))))
    assert [row["Key"] for row in rows] == [one.key for one in LOG]
    assert rows[5]["Details"] == "'=1+1"
    assert rows[0]["When"].startswith("2023-11-14 22:13:20")


def test_a_long_log_is_paged_and_all_of_it_saved(
    open_page: Open, logged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[Any] = []
    monkeypatch.setattr(st, "download_button", lambda _, file, *__, **___: files.append(file))
    append_decisions(StoreLayout(logged), [Decision(kind=MISS, at=1.7e9 + 9, key=f"{n:064x}") for n in range(60)])
    app = sound(open_page(logged, "admin", tab="Decisions"))
    assert len(_table(app)) == tab.SHOWN
    assert "1–50 of 67, newest first." in [one.value for one in app.caption]
    assert len(list(csv.reader(io.StringIO(files[-1]())))) == 68
    app.session_state["log-page"] = 2
    assert len(_table(sound(app.run()))) == 17
    append_decisions(StoreLayout(logged), [Decision(kind=MISS, at=1.7e9 + 10, key=ONE)])
    assert len(_table(sound(app.run()))) == 18, "what is decided meanwhile is read too"


def test_hostile_lines_are_only_ever_text(open_page: Open, logged: Path) -> None:
    hostile = [
        Decision(kind=text, at=1.7e9, key=text, name=text, reason=text, detail=text, by=text, runner_up=text)
        for text in HOSTILE
    ]
    append_decisions(
        StoreLayout(logged), [Decision(kind=MISS, at=1.7e9, key=one.key, name=one.name) for one in hostile]
    )
    append_decisions(StoreLayout(logged), [Decision(kind=one.kind, at=1.7e9, key=one.key) for one in hostile])
    app = sound(open_page(logged, "admin", tab="Decisions"))
    table = _table(app)
    assert set(HOSTILE) <= set(map(as_shown, table["What"]))
    for name, link in zip(map(as_shown, table["Kernel"]), table["Kernel →"], strict=True):
        is_hostile = any(text.startswith(name) or name.startswith(text[:12]) for text in HOSTILE)
        assert str(link).startswith("kernel?key=") != is_hostile, "what is no key is no link"
    assert "another: 2" in app.text[0].value
    for one in (*app.markdown, *app.caption, *app.title, *app.info):
        assert not any(text in one.value for text in HOSTILE)


def test_lines_that_cannot_be_read_are_counted(open_page: Open, logged: Path) -> None:
    with StoreLayout(logged).decisions_log.open("ab") as file:
        file.write(b"\nnothing\n")
    app = sound(open_page(logged, "admin", tab="Decisions"))
    assert "1 line skipped: Integrity says why." in app.text[0].value
    assert len(_table(app)) == len(LOG)


def test_the_words_count_each_kind() -> None:
    assert counts_text(LOG[:4], 0) == "4 entries. miss: 2, choice: 1, eviction: 1."

"""Every page in every state, run for real by Streamlit's own test runner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from app import context
from app.addresses import moved
from cache_engine.errors import GemmCacheError, IndexUnavailable
from cache_engine.store.codec import encode_record
from cache_engine.store.disk import DiskStore
from tests.helpers import damage_record, fill, make_store, publish
from tests.pages.opening import Open, sound

PAGES = (  # also those of earlier versions, which lead to parts of others
    "overview",
    "kernels",
    "kernel",
    "compare",
    "architectures",
    "coverage",
    "demand",
    "caches",
    "compile",
    "farm",
    "fleet",
    "evaluations",
    "admin",
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_on_an_empty_store(open_page: Open, tmp_path: Path, page: str) -> None:
    app = sound(open_page(tmp_path / "empty", page))
    assert app.title[0].value == moved(page, {})[0].capitalize()
    if page in ("overview", "architectures"):
        assert "This store is empty" in app.info[0].value


@pytest.mark.parametrize("page", PAGES)
def test_a_store_that_cannot_be_opened_is_reported(open_page: Open, tmp_path: Path, page: str) -> None:
    (tmp_path / "file").touch()
    app = open_page(tmp_path / "file", page)
    assert not app.exception
    assert [error.value for error in app.error] == ["Could not load this page."]
    assert len(app.title) == 1
    assert "is a file; a store is a directory" in app.text[0].value


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_title_while_the_index_is_unavailable(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """As a disk that was full before the first visit makes it."""

    def refuse(*_: object, **__: object) -> None:
        raise IndexUnavailable("the disk refuses")

    monkeypatch.setattr(context, "ask", refuse)
    app = open_page(compiled_store, page)
    assert not app.exception
    assert len(app.title) == 1


def test_a_page_that_fails_has_the_header_with_the_way_to_others(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GemmCacheError("it took too long")

    monkeypatch.setattr(context, "demand", refuse)
    app = open_page(compiled_store, "demand")
    assert [error.value for error in app.error] == ["Could not load this page."]
    assert "it took too long" in [text.value for text in app.text]
    assert app.button(key="search-button")


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("overview", "span"),
        ("demand", "span"),
        ("demand", "part"),
        ("compile", "what"),
        ("evaluations", "e_kind"),
        ("kernel", "part"),
    ],
)
def test_a_choice_that_is_empty_in_the_address_is_the_default(
    open_page: Open, compiled_store: Path, page: str, name: str
) -> None:
    given = {"key": next(compiled_store.glob("metadata/*/*.json")).stem} if page == "kernel" else {}
    plain, empty = (sound(open_page(compiled_store, page, **given, **more)) for more in ({}, {name: ""}))
    shown = [[(one.type, getattr(one, "label", "")) for one in app.main] for app in (plain, empty)]
    assert shown[0] == shown[1]


HOSTILE = (
    "<script>alert(1)</script> [click](javascript:alert(1)) **bold** $x^2$ :material/delete: :red[x]",
    "=cmd|'/C calc'!A0 \u202egnp.exe\x00\x1b[31m",
)


# Pages, and the parts of one that has several.
PARTS = ("Code", "Performance", "Cache key", "History", "Compiler log")
VIEWS = (*((page, "") for page in PAGES), *(("kernel", part) for part in PARTS))


@pytest.mark.parametrize(("page", "part"), VIEWS)
def test_hostile_text_is_only_ever_text(open_page: Open, store: DiskStore, page: str, part: str) -> None:
    """A record made up by someone else, hostile in every field that is text."""
    text = f"={HOSTILE[0]} {HOSTILE[1]}"
    (key,) = fill(store, 1)
    record = next(store.records())
    forged = msgspec.structs.replace(
        record,
        name=text,
        family=text,
        compiler=text,
        compiler_version=text,
        arch=text,
        created_by=text,
        components=((text, text),),
        problem=msgspec.structs.replace(record.problem, dtype=text, out_dtype=text, layout=text, epilogue=text[:40]),
        warnings=(text,),
        created_at=1e12,
    )
    damage_record(store, key, encode_record(forged))
    asked: dict[str, dict[str, str]] = {
        "kernel": {"key": key, "part": part or "Summary", "find": text},
        "kernels": {"family": text, "text": ""},
        "compare": {"a": str(key), "b": str(key)},
    }
    app = open_page(store.layout.root, page, **asked.get(page, {}))
    assert not app.exception, app.exception
    assert [error.value for error in app.error] == [], [text.value for text in app.text]
    # These are no real code, so it cannot be disassembled.
    assert [note.value for note in app.text if "Machine code is not shown" in note.value] or part != "Code"
    for markdown in (*app.markdown, *app.caption, *app.title, *app.header, *app.info, *app.warning, *app.success):
        assert not any(one in markdown.value for one in HOSTILE)
    for button in app.get("download_button"):
        assert not any(one in str(button.proto) for one in HOSTILE)


HOLD_MIRROR = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


def test_while_the_mirror_cannot_be_read_the_last_answers_are_shown_with_their_age(
    open_page: Open, compiled_store: Path
) -> None:
    app = sound(open_page(compiled_store, "overview"))
    assert app.metric[0].value == "4"
    publish(make_store(compiled_store), 50)
    command = [sys.executable, "-c", HOLD_MIRROR, str(compiled_store / "mirror.duckdb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        sound(app.run())
        assert app.metric[0].value == "4"
        assert "Showing data from" in app.warning[0].value
        assert "another program" in app.text[0].value
        holder.communicate()
    sound(app.run())
    assert app.metric[0].value == "5"
    assert not [warning for warning in app.warning if "Showing data from" in warning.value]

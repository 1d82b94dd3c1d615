"""Notes and tags of kernels, and saved views: what people write stays, and nothing of it can harm a reader."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import CorruptEntry, StoreError, UsageError
from cache_engine.model.key import CacheKey
from cache_engine.store import notes
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import StoreLayout
from cache_engine.store.notes import Note, UnknownNote, View, annotate, delete_view, note_of, noted, save_view, views

KEY, OTHER = CacheKey("ab" * 32), CacheKey("cd" * 32)


def test_a_note_and_its_tags_change_apart(store: DiskStore) -> None:
    layout = store.layout
    assert note_of(layout, KEY) is None
    annotate(layout, KEY, text="  slow on B200 ", add=("prod", "check"), by="a reader")
    annotate(layout, KEY, add=("a.b-c_1",), remove=("check", "never there"))
    annotate(layout, OTHER, add=("prod",))
    found = note_of(layout, KEY)
    assert found is not None
    assert (found.text, found.tags) == ("slow on B200", ("a.b-c_1", "prod"))
    assert [key for key, _ in noted(layout)] == [KEY, OTHER]
    annotate(layout, KEY, text="", remove=found.tags)
    assert [key for key, _ in noted(layout)] == [OTHER], "without a note and tags no file stays"


@pytest.mark.parametrize(
    "text",
    [
        "two\nlines",
        "\x1b[31mred",
        "a\x00b",
        "\u202egnp.exe",
        "a\u2028b",
        "a\x85b",
        "\ud800",
        "x" * 501,
        "x" * 1_000_000,
    ],
)
def test_hostile_notes_are_refused(store: DiskStore, text: str) -> None:
    with pytest.raises(UsageError, match="a note"):
        annotate(store.layout, KEY, text=text)
    assert list(noted(store.layout)) == []


@pytest.mark.parametrize("tag", ["", "a b", "-a", "UPPER", "x" * 33, "a\n", "ä", "../x", "<b>"])
def test_hostile_tags_are_refused(store: DiskStore, tag: str) -> None:
    with pytest.raises(UsageError, match="is not a tag"):
        annotate(store.layout, KEY, add=("good", tag))
    assert note_of(store.layout, KEY) is None


def test_markup_is_only_text(store: DiskStore) -> None:
    text = "<script>alert(1)</script> [x](javascript:1) **b** =1+1 $x^2$"
    annotate(store.layout, KEY, text=text)
    found = note_of(store.layout, KEY)
    assert found is not None
    assert found.text == text


def test_tags_and_notes_are_bounded(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    annotate(store.layout, KEY, add=[f"t{number}" for number in range(notes.MOST_TAGS)])
    with pytest.raises(UsageError, match="at most 16 tags"):
        annotate(store.layout, KEY, add=("more",))
    monkeypatch.setattr(notes, "MOST_FILES", 1)
    with pytest.raises(StoreError, match="no more can be"):
        annotate(store.layout, OTHER, text="one more")
    annotate(store.layout, KEY, text="one that is there can change")


def _tag(root: Path, tag: str) -> None:
    annotate(StoreLayout(root), KEY, add=(tag,))


def test_two_processes_at_once_lose_nothing(store: DiskStore) -> None:
    spawn = get_context("spawn")
    tags = [f"t{number}" for number in range(4)]
    workers = [spawn.Process(target=_tag, args=(store.layout.root, tag)) for tag in tags]
    for worker in workers:
        worker.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda tag: _tag(store.layout.root, tag), [f"u{number}" for number in range(8)]))
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    found = note_of(store.layout, KEY)
    assert found is not None
    assert found.tags == (*tags, *(f"u{number}" for number in range(8)))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptEntry),
        (b"{}", CorruptEntry),
        (b"[" * 5000, CorruptEntry),
        (b'{"format":1,"text":7}', CorruptEntry),
        (b'{"format":1,"text":"\\u001b[31m"}', CorruptEntry),
        (b'{"format":1,"text":"' + b"x" * 20_000 + b'"}', CorruptEntry),
        (b'{"format":2,"text":"from the future"}', UnknownNote),
    ],
)
def test_a_file_that_is_no_note_is_neither_read_nor_replaced(store: DiskStore, data: bytes, error: type) -> None:
    annotate(store.layout, OTHER, text="sound")
    path = Path(store.layout.note_path(KEY))
    path.write_bytes(data)
    with pytest.raises(error):
        note_of(store.layout, KEY)
    with pytest.raises(error, match="another format version" if error is UnknownNote else "verify --repair"):
        annotate(store.layout, KEY, text="new")
    assert path.read_bytes() == data
    found = dict(noted(store.layout))
    assert isinstance(found[KEY], str)
    assert isinstance(found[OTHER], Note)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_note_or_refused(data: bytes) -> None:
    with suppress(CorruptEntry, UnknownNote):
        assert notes._decoded(data, Note).text.isprintable()


def test_a_view_of_another_version_is_not_replaced_and_a_damaged_one_is(store: DiskStore) -> None:
    save_view(store.layout, View("mine"))
    path = Path(store.layout.view_path("mine"))
    path.write_text('{"name": "mine", "format": 2}')
    with pytest.raises(UnknownNote):
        save_view(store.layout, View("mine"))
    assert path.read_text() == '{"name": "mine", "format": 2}'
    path.write_text("damaged")
    save_view(store.layout, View("mine"))
    (path.parent / f"view-{'0' * 32}.json").write_bytes(path.read_bytes())
    assert [view.name for view in views(store.layout)] == ["mine"], "a copy under another view's name is no view"


@pytest.mark.parametrize("by", ["\x1b[31mred", "\ud800", "a\nb", "x" * 1_000_000])
def test_a_writer_with_any_name_leaves_what_can_be_read(by: str, store: DiskStore) -> None:
    annotate(store.layout, KEY, text="stays", by=by)
    save_view(store.layout, View("stays", by=by))
    found = note_of(store.layout, KEY)
    assert found is not None
    assert (found.text, found.by.isprintable()) == ("stays", True)
    assert [view.name for view in views(store.layout)] == ["stays"]


def test_a_full_disk_changes_nothing(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    annotate(store.layout, KEY, text="before")

    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            annotate(store.layout, KEY, text="after")
    found = note_of(store.layout, KEY)
    assert found is not None
    assert found.text == "before"
    assert not list(store.layout.temp.iterdir())


def test_views_are_saved_replaced_and_deleted(store: DiskStore) -> None:
    first = View("slow ones", {"q": ["compile>1s"], "arch": ["sm_90", "sm_90a"]}, ("Key", "Target"))
    save_view(store.layout, first)
    save_view(store.layout, View("<b>/../ $x$", {}))
    save_view(store.layout, View(" slow ones ", {"q": ["compile>2s"]}))
    annotate(store.layout, KEY, text="a note is no view")
    assert [(view.name, view.address) for view in views(store.layout)] == [
        ("<b>/../ $x$", {}), ("slow ones", {"q": ["compile>2s"]})
    ]  # fmt: skip
    delete_view(store.layout, "slow ones")
    delete_view(store.layout, "never there")
    assert [view.name for view in views(store.layout)] == ["<b>/../ $x$"]
    assert [key for key, _ in noted(store.layout)] == [KEY]


@pytest.mark.parametrize(
    "view",
    [
        View(""),
        View("a\nb"),
        View("x" * 61),
        View("long", {"q": ["x" * 9_000]}),
        View("half", {"q": ["\ud800"]}),
        View("half", {"\ud800": []}),
        View("red", {}, ("\x1b[31m",)),
    ],
)
def test_views_that_are_not_allowed_are_refused(store: DiskStore, view: View) -> None:
    with pytest.raises(UsageError):
        save_view(store.layout, view)
    assert views(store.layout) == []

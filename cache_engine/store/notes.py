"""Notes, tags and pins of kernels, and saved views of the list of kernels: what people write, in a small file for each.

A change reads, changes and replaces one file under a lock, so two processes at once lose nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TypeVar

import msgspec

from cache_engine.errors import CorruptEntry, StoreError, Untrusted, UsageError
from cache_engine.model.key import CacheKey, is_key
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout, key_of_note_name
from cache_engine.store.lock import file_lock
from cache_engine.store.publish import publish_file, sync_folder
from cache_engine.units import printable

MOST_LETTERS, MOST_NAME = 500, 60
MOST_TAGS = 16
MOST_FILES = 10_000
MOST_ADDRESS_BYTES = 8_000
TAG = "a tag has 1 to 32 of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit"

_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}", re.ASCII)
_MOST_BYTES = 16_384
_MOST_WRITER = 200
_FORMAT = 1
_LOCK_TIMEOUT_S = 10.0


class UnknownNote(StoreError):
    """A note or a view is of another format version; it stays as it is."""


class Note(msgspec.Struct, frozen=True):
    """The note and the tags of a kernel.

    Attributes:
        tags: sorted, each once.
        at, by: when it was changed last, in seconds since 1970, and by whom.
    """

    text: str = ""
    tags: tuple[str, ...] = ()
    at: float = 0.0
    by: str = ""
    format: int = _FORMAT


class View(msgspec.Struct, frozen=True):
    """A saved view: a search for kernels with its filters, order and columns, under a name.

    Attributes:
        address: the parameters of the address of the page Kernels.
        columns: the names of the columns that the list shows; empty for the usual ones.
    """

    name: str
    address: dict[str, list[str]] = {}
    columns: tuple[str, ...] = ()
    at: float = 0.0
    by: str = ""
    format: int = _FORMAT


def note_of(layout: StoreLayout, key: CacheKey) -> Note | None:
    """The note and the tags of a kernel, whether or not the store still has the kernel; ``None`` without them.

    Raises:
        CorruptEntry, UnknownNote: when the file is damaged, or of another format version.
        OSError: when it cannot be read.
    """
    data = read_file(layout.note_path(key), _MOST_BYTES + 1)
    return None if data is None else _decoded(data, Note)


def noted(layout: StoreLayout) -> Iterator[tuple[CacheKey, Note | str]]:
    """Each kernel with its note and tags or, for a file that cannot be read, the reason."""
    for key in filter(None, map(key_of_note_name, _names(layout))):
        try:
            note = note_of(layout, key)
        except (StoreError, CorruptEntry, OSError) as error:
            yield key, str(error)
        else:
            if note is not None:
                yield key, note


def annotate(
    layout: StoreLayout,
    key: CacheKey,
    *,
    text: str | None = None,
    add: Collection[str] = (),
    remove: Collection[str] = (),
    by: str = "",
) -> None:
    """Changes the note of a kernel, unless ``text`` is ``None``, and adds and removes tags. An empty text removes it.

    Raises:
        UsageError: when the text or a tag is not allowed, or they are too many.
        CorruptEntry, StoreError: when the present note is damaged, of another version or locked for long.
        OSError: when the disk cannot be written.
    """
    text = None if text is None else _line(text, "a note", MOST_LETTERS)
    for tag in add:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"{tag[:80]!r} is not a tag: {TAG}")
    with file_lock(layout.notes_lock, _LOCK_TIMEOUT_S):
        try:
            old = note_of(layout, key) or Note()
        except Untrusted:
            raise
        except CorruptEntry as error:
            mend = "gemm-cache verify --repair moves it to quarantine"
            raise CorruptEntry(f"the note of {key[:12]} cannot be read: {error}; {mend}") from error
        tags = tuple(sorted(({*old.tags} | {*add}) - {*remove}))
        if len(tags) > MOST_TAGS:
            raise UsageError(f"a kernel has at most {MOST_TAGS} tags; remove one first")
        new = Note(old.text if text is None else text, tags, time.time(), _who(by))
        _put(layout, layout.note_path(key), new if new.text or new.tags else None)


def views(layout: StoreLayout) -> list[View]:
    """The saved views, sorted by name; files that cannot be read, or have another view's name, are left out."""
    found = []
    for name in _names(layout):
        if key_of_note_name(name) is None:
            with suppress(StoreError, CorruptEntry, OSError):
                data = read_file(layout.notes / name, _MOST_BYTES + 1)
                view = None if data is None else _decoded(data, View)
                if view is not None and os.path.basename(layout.view_path(view.name)) == name:
                    found.append(view)
    return sorted(found, key=lambda view: view.name)


def save_view(layout: StoreLayout, view: View) -> None:
    """Saves a view in place of the one with its name.

    Raises:
        UsageError: when the name or the address is not allowed.
        UnknownNote: when the view with its name is of another format version.
        StoreError, OSError: when the store is locked for long, or cannot be written.
    """
    name = _line(view.name, "the name of a view", MOST_NAME)
    if not name:
        raise UsageError("a view needs a name")
    view = msgspec.structs.replace(view, name=name, by=_who(view.by))
    try:
        size_bytes = len(msgspec.json.encode(view))
    except UnicodeEncodeError as error:
        raise UsageError("the search is not valid Unicode text; change it, and save it again") from error
    if size_bytes > MOST_ADDRESS_BYTES or not all(map(str.isprintable, view.columns)):
        raise UsageError("the search is too long to be saved, or a column has control characters; choose fewer filters")
    path = layout.view_path(name)
    with file_lock(layout.notes_lock, _LOCK_TIMEOUT_S):
        with suppress(CorruptEntry):
            check_note_file(layout, os.path.basename(path))
        _put(layout, path, view)


def delete_view(layout: StoreLayout, name: str) -> None:
    """Deletes the view with this name, if there is one; raises ``OSError`` when the disk cannot be written."""
    with file_lock(layout.notes_lock, _LOCK_TIMEOUT_S):
        _put(layout, layout.view_path(name), None)


def check_note_file(layout: StoreLayout, name: str) -> None:
    """Reads a file of notes; raises ``CorruptEntry``, ``UnknownNote`` or ``OSError`` if it cannot be used."""
    data = read_file(layout.notes / name, _MOST_BYTES + 1, trust=True)
    if data is not None and key_of_note_name(name) is None:
        _decoded(data, View)
    elif data is not None:
        _decoded(data, Note)


def _names(layout: StoreLayout) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(layout.notes))
    return []


def _put(layout: StoreLayout, path: str, value: Note | View | None) -> None:
    if value is None:
        with suppress(FileNotFoundError):
            os.unlink(path)
            sync_folder(str(layout.notes))
        return
    if not os.path.lexists(path) and len(_names(layout)) >= MOST_FILES:
        raise StoreError(f"the store has {MOST_FILES:,} notes and views, and no more can be; delete some")
    publish_file(layout.temp, path, msgspec.json.encode(value), durable=True)


def _line(text: str, what: str, most: int) -> str:
    """The text without spaces around it; raises ``UsageError`` unless it is one short, printable line."""
    text = text.strip()
    if len(text) > most:
        raise UsageError(f"{what} has at most {most} letters")
    if not text.isprintable():
        raise UsageError(f"{what} is one line without control characters")
    return text


def _who(by: str) -> str:
    """The name of the writer, cut and made printable: a name from a login may have any letters."""
    return printable(by[:_MOST_WRITER])


_T = TypeVar("_T", Note, View)


def _decoded(data: bytes, kind: type[_T]) -> _T:
    if len(data) > _MOST_BYTES:
        raise CorruptEntry("it is too large for a note")
    try:
        if msgspec.json.decode(data, type=_Versioned).format != _FORMAT:
            raise UnknownNote("a note of another format version")
        found: _T = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"not a note: {error}") from error
    texts = (found.name, *found.columns) if isinstance(found, View) else (found.text, found.by, *found.tags)
    if not all(text.isprintable() for text in texts):
        raise CorruptEntry("not a note: it has control characters")
    return found


class _Versioned(msgspec.Struct):
    format: int


# ---- Pinned keys, whose entries no automatic cleaning deletes ----
# Each pin is an empty file, so two processes or two versions of the program never overwrite each other's pins.

MOST_PINS = 10_000

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def pinned_keys(layout: StoreLayout) -> frozenset[CacheKey]:
    """All pinned keys, whether or not the store has their entries."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return frozenset(CacheKey(name) for name in os.listdir(layout.pins) if is_key(name))
    return frozenset()


def is_pinned(layout: StoreLayout, key: CacheKey) -> bool:
    """Whether a key is pinned."""
    return os.path.lexists(layout.pin_path(key))


def pin(layout: StoreLayout, key: CacheKey) -> None:
    """Pins a key; after this returns, a power cut does not remove the pin.

    Raises:
        StoreError: when the store already has the largest number of pins.
        OSError: when the disk cannot be written.
    """
    if len(pinned_keys(layout) - {key}) >= MOST_PINS:
        raise StoreError(f"{MOST_PINS:,} kernels are pinned, and no more can be; gemm-cache pin --remove ends some")
    with suppress(FileExistsError):
        layout.pins.mkdir(mode=0o700)
        sync_folder(str(layout.root))
    os.close(os.open(layout.pin_path(key), _FLAGS, 0o600))
    sync_folder(str(layout.pins))


def unpin(layout: StoreLayout, key: CacheKey) -> None:
    """Unpins a key, if it is pinned.

    Raises:
        OSError: when the disk cannot be written.
    """
    with suppress(FileNotFoundError):
        os.unlink(layout.pin_path(key))
        sync_folder(str(layout.pins))

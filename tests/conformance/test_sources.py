"""What every source of another framework's cache promises, run by every source on a cache that its framework made."""

from __future__ import annotations

import builtins
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from cache_engine.frameworks.base import CacheReader
from cache_engine.frameworks.folder import MOST_TEXT_BYTES
from cache_engine.frameworks.registry import load_sources, survey
from cache_engine.frameworks.values import (
    DeletePlan,
    Entry,
    Fault,
    KeyFactors,
    Part,
    PartKind,
    Place,
    ScanFinding,
    Seen,
    State,
    Unchanged,
    id_of,
    name_of,
)
from cache_engine.model.outcome import Failure
from tests.frameworks.fixtures import unpack
from tests.frameworks.test_flashinfer import write_operation

SOURCES = load_sources()
MADE = ("triton", "cupy", "cutile", "tilelang", "cuda_core", "deepgemm", "inductor")
"""The kinds of which there is a cache that the framework made; tests/frameworks/fixtures/make.py made it."""


@pytest.fixture(params=(*MADE, "flashinfer"))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A cache that its framework made, or that a test writes as the framework does."""
    if request.param == "flashinfer":
        for number, arch in enumerate(("90a", "100a")):
            write_operation(tmp_path / "flashinfer", arch, f"/usr/local/cuda-13.{number}")
        return Place(request.param, tmp_path / "flashinfer", "given")
    return Place(request.param, unpack(request.param, tmp_path), "given")


def _source(place: Place) -> CacheReader:
    return SOURCES.by_kind[place.kind]


def _scan(place: Place) -> list[Seen]:
    return [seen for _, seen in survey(SOURCES, [place])]


def _entries(place: Place) -> list[Entry]:
    return [seen for seen in _scan(place) if isinstance(seen, Entry)]


def _state(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything that reading could change, times of access too."""
    found: dict[str, tuple[int, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_atime_ns, status.st_ctime_ns)
    return found


def test_a_cache_that_the_framework_made_is_read_without_a_finding(made: Place) -> None:
    seen = _scan(made)
    assert [each for each in seen if not isinstance(each, Entry)] == []
    entries = _entries(made)
    assert entries
    assert len({entry.id for entry in entries}) == len(entries)
    assert {entry.state for entry in entries} == {State.COMPLETE}


def test_every_fact_is_known_or_said_to_be_unknown(made: Place) -> None:
    """No entry leaves a fact out without a reason, and no source claims that it cannot know what it states."""
    facts = {field.name for field in fields(Entry)} - {"id", "stamp", "parts", "state", "config", "unread", "elsewhere"}
    unknowable = _source(made).unknowable
    assert unknowable.keys() <= facts | {"config"}
    for entry in _entries(made):
        for fact in facts - {"last_used_at"}:  # only the file system knows that
            value = getattr(entry, fact)
            assert (value is None) == (fact in unknowable or fact in entry.unread), (fact, value)


def test_the_parts_are_all_bytes_of_the_place(made: Place) -> None:
    if not any(part.file for entry in _entries(made) for part in entry.parts):
        pytest.skip("its entries are rows of a file")
    files = {
        id_of(str(path.relative_to(made.path))): path.stat().st_size for path in made.path.rglob("*") if path.is_file()
    }
    parts = {part.file: part.size_bytes for entry in _entries(made) for part in entry.parts}
    assert parts == files


def test_each_part_is_read_as_it_is(made: Place) -> None:
    for entry in _entries(made):
        for part in entry.parts:
            data = _source(made).read(made, entry, part)
            assert isinstance(data, bytes)
            assert data
            if part.kind == PartKind.BINARY:
                assert data.startswith(b"\x7fELF")
            if part.file:
                content = (made.path / name_of(part.file)).read_bytes()
                assert data == content or (part.kind == PartKind.BINARY and content.endswith(data.removesuffix(b"\0")))
            else:
                assert len(data) == part.size_bytes


def test_scanning_and_reading_change_nothing_not_even_the_time_of_access(made: Place) -> None:
    for path in [made.path, *made.path.rglob("*")]:
        os.utime(path, (1_000, 2_000))  # any read that is noted would show
    before = _state(made.path)
    for entry in _entries(made):
        for part in entry.parts:
            _source(made).read(made, entry, part)
        _source(made).key_factors(made, entry)
        _source(made).plan_delete(made, [entry])
    assert _state(made.path) == before


def test_an_entry_with_the_stamp_that_is_known_is_unchanged(made: Place) -> None:
    entries = _entries(made)
    known = {entry.id: entry.stamp for entry in entries}
    again = list(_source(made).scan(made, known))
    assert sorted(again, key=str) == sorted(map(Unchanged, known), key=str)
    other = {name: f"{stamp}x" for name, stamp in known.items()}
    assert sorted(_source(made).scan(made, other), key=str) == sorted(entries, key=str)


def test_nothing_is_imported_run_or_connected_to(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the framework nor pickle is imported, no process starts, and no file is opened to write."""
    _entries(made)  # our own modules
    really = os.open

    def opened(path: str, flags: int, *rest: int, **named: int) -> int:
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC), path
        return really(path, flags, *rest, **named)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("not while a cache of others is read")

    before = set(sys.modules)
    monkeypatch.setattr(os, "open", opened)
    for module, name in ((subprocess, "Popen"), (os, "posix_spawn"), (os, "fork"), (socket, "socket")):
        monkeypatch.setattr(module, name, refused)
    for name in ("exec", "eval", "compile"):
        monkeypatch.setattr(builtins, name, refused)
    for entry in _entries(made):
        _source(made).key_factors(made, entry)
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not new & {"pickle", "triton", "torch", "cupy", "tilelang", "cuda", "vllm", "flashinfer", "jax", "dill"}


def test_key_factors_are_named_and_differ_between_entries(made: Place) -> None:
    """Or the source says why there are none."""
    found = [_source(made).key_factors(made, entry) for entry in _entries(made)]
    for factors in found:
        if isinstance(factors, Failure):
            assert len(factors.reason) > 20
        else:
            assert factors.factors
            assert all(factor.name for factor in factors.factors)
    stated = [factors.factors for factors in found if isinstance(factors, KeyFactors)]
    assert len(set(stated)) == len(stated)


def test_a_plan_names_what_it_deletes_or_why_there_is_none(made: Place) -> None:
    entries = _entries(made)
    plan = _source(made).plan_delete(made, entries)
    if isinstance(plan, DeletePlan):
        assert {deletion.id for deletion in plan.deletions} | plan.left.keys() == {entry.id for entry in entries}
    else:
        assert len(plan.reason) > 20


def _names(place: Place) -> list[Path]:
    """The files of the first entry; all of a place whose entries are rows."""
    first = min(_entries(place), key=lambda entry: entry.id)
    files = [place.path / name_of(part.file) for part in first.parts if part.file]
    return files or sorted(path for path in place.path.rglob("*") if path.is_file())


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 7):
        data[at] ^= 0xA5
    path.write_bytes(data)


def _deep(path: Path) -> None:
    path.write_bytes(b'{"a":' * 100_000)


def _linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    os.truncate(path, 1 << 30)


def _gone(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = (_emptied, _cut, _flipped, _deep, _linked, _circle, _pipe, _sparse, _gone, _folder)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__.strip("_"))
def test_every_file_may_be_damaged_and_the_scan_goes_on(made: Place, damage: Callable[[Path], None]) -> None:
    """One file at a time; the other entries are as before."""
    sound = {entry.id: entry for entry in _entries(made)}
    pristine = made.path.with_name("pristine")
    shutil.copytree(made.path, pristine)
    for path in _names(made):
        damage(path)
        seen = _scan(made)
        assert all(isinstance(each, Entry | ScanFinding) for each in seen)
        file = id_of(str(path.relative_to(made.path)))
        untouched = {entry.id for entry in sound.values() if all(_is_other(part, file, entry) for part in entry.parts)}
        assert untouched <= {each.id for each in seen if isinstance(each, Entry)}
        for entry in seen:
            if isinstance(entry, Entry):
                factors = _source(made).key_factors(made, entry)
                assert isinstance(factors, KeyFactors | Failure)
        shutil.rmtree(made.path)
        shutil.copytree(pristine, made.path)


def _is_other(part: Part, file: str, entry: Entry) -> bool:
    """Whether a part is neither a row of the file that is damaged nor a file of the same entry."""
    return bool(part.file) and part.file != file and not file.startswith(f"{entry.id}/")


def test_a_link_out_of_the_place_is_never_followed(made: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copytree(made.path, secret)
    before = _state(secret)
    for path in sorted(made.path.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        path.symlink_to(secret / path.name)
    for each in _scan(made):
        assert isinstance(each, ScanFinding), each
        assert each.fault == Fault.NOT_A_FILE
    assert _state(secret) == before


def test_a_large_file_of_metadata_is_not_read(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    really = os.read

    def counted(descriptor: int, size: int) -> bytes:
        nonlocal largest
        largest = max(largest, size)
        return really(descriptor, size)

    monkeypatch.setattr(os, "read", counted)
    for path in _names(made):
        if path.suffix == ".json":
            _sparse(path)
    _scan(made)
    assert largest <= MOST_TEXT_BYTES


def test_names_with_newlines_and_bytes_that_are_no_text_are_listed_and_read(made: Place) -> None:
    if made.path.is_file():
        pytest.skip("its entries are rows of a file")
    before = len(_scan(made))
    strange = os.fsdecode(os.fsencode(made.path) + b"/a\nb\x1b[31m%\xff")
    os.mkdir(strange)
    Path(strange, "x\ny.bin").write_bytes(b"content")
    (seen,) = [each for each in _scan(made) if each.id.startswith("a%0A")]
    assert isinstance(seen, Entry)
    assert (seen.id, seen.state) == ("a%0Ab%1B[31m%25%FF", State.UNREAD)
    assert len(_scan(made)) == before + 1
    (part,) = seen.parts
    assert _source(made).read(made, seen, part) == b"content"
    seen.id.encode()


def test_what_grows_in_a_folder_that_is_no_entry_is_read_again(made: Place) -> None:
    if made.kind == "triton":
        pytest.skip("each folder is an entry there; the index knows no stamp of one that has folders")
    below = made.path / "strange" / "below"
    below.mkdir(parents=True)
    (below / "file").write_bytes(b"short")
    (before,) = [entry for entry in _entries(made) if entry.id == "strange"]
    (below / "file").write_bytes(b"longer")
    (after,) = [seen for seen in _source(made).scan(made, {before.id: before.stamp}) if seen.id == "strange"]
    assert isinstance(after, Entry)
    assert (before.size_bytes, after.size_bytes) == (5, 6)


class _Vanishing:
    """Deletes a folder at one of the system calls that open or look at a file."""

    def __init__(self, folder: Path, moment: int) -> None:
        self.calls = 0
        self._folder, self._moment = folder, moment

    def before(self, really: Callable[..., object]) -> Callable[..., object]:
        def counting(*given: object, **named: object) -> object:
            self.calls += 1
            if self.calls == self._moment:
                shutil.rmtree(self._folder)
            return really(*given, **named)

        return counting


def test_files_that_vanish_while_it_scans_are_left_out(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever system call finds them gone."""
    pristine = made.path.with_name("pristine")
    shutil.copytree(made.path, pristine)
    for moment in range(1, 10_000):
        vanishing = _Vanishing(made.path, moment)
        with monkeypatch.context() as patched:
            for name in ("open", "stat"):
                patched.setattr(os, name, vanishing.before(getattr(os, name)))
            seen = _scan(made)
        assert all(isinstance(each, Entry | ScanFinding) for each in seen)
        if vanishing.calls < moment:
            return
        shutil.copytree(pristine, made.path)
    raise AssertionError("unreachable")


def test_what_must_not_be_read_is_said_and_the_scan_goes_on(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user's file; root may read everything, so the system call refuses here."""
    first = min(_entries(made), key=lambda entry: entry.id)
    rows = not any(part.file for part in first.parts)
    refused = "cache.db" if rows else first.id.rpartition("/")[2]
    others = set() if rows else {entry.id for entry in _entries(made)} - {first.id}
    really = os.open

    def opening(path: str, *rest: int, **named: int) -> int:
        if os.fspath(path) == refused:
            raise PermissionError(13, "Permission denied", path)
        return really(path, *rest, **named)

    monkeypatch.setattr(os, "open", opening)
    seen = {each.id: each for each in _scan(made)}
    assert others <= seen.keys()
    refusal = seen["cache.db" if rows else first.id]
    if isinstance(refusal, Entry):  # its size and age are known all the same
        assert (refusal.state, refusal.unread["name"]) == (State.UNREAD, "you may not read it")
    else:
        assert isinstance(refusal, ScanFinding)
        assert refusal.fault == Fault.FORBIDDEN


def test_a_place_that_is_not_there_is_a_finding(made: Place) -> None:
    (seen,) = _scan(Place(made.kind, made.path / "missing", "given"))
    assert isinstance(seen, ScanFinding)
    assert seen.fault == Fault.UNREADABLE

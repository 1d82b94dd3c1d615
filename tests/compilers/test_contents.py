"""Digests of files, remembered across processes: never wrong, also when the memory of them is damaged."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.compilers import contents
from cache_engine.compilers.contents import WatchedFiles, digests
from cache_engine.errors import CompilerMissing
from tests.helpers import patch_in_place

# Files that have not changed for a while.
FILES = (Path(hashlib.__file__), Path(fcntl.__file__ if hasattr(fcntl, "__file__") else os.__file__))
SHA256 = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in FILES)
FALSE = "0" * 64


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where digests are remembered in this test; it is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "gemm-cache-toolchains"


def _stored(place: Path) -> contents.Known:
    return contents._parse((place / "digests").read_bytes().partition(b"\n")[2])


def _falsify(place: Path) -> None:
    """Has every remembered digest replaced by a false one, under a checksum that is right."""
    known = _stored(place)
    assert known
    (place / "digests").write_bytes(contents._encode(dict.fromkeys(known, FALSE.encode())))


def test_a_digest_is_remembered_and_the_file_not_read_again(place: Path) -> None:
    assert digests(FILES) == SHA256
    _falsify(place)
    assert digests(FILES) == (FALSE, FALSE)
    assert (place.stat().st_mode & 0o777, (place / "digests").stat().st_mode & 0o777) == (0o700, 0o600)


def test_more_files_are_added_to_those_remembered(place: Path) -> None:
    digests(FILES[:1])
    digests(FILES[1:])
    assert set(_stored(place).values()) == {each.encode() for each in SHA256}


def test_a_file_changed_in_place_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its size and its time of modification as they were."""
    monkeypatch.setattr(contents, "_SETTLED_NS", -1)
    path = tmp_path / "library"
    path.write_bytes(b"content")
    before = digests([path])
    patch_in_place(path)
    assert digests([path]) == (hashlib.sha256(path.read_bytes()).hexdigest(),)
    assert digests([path]) != before


def test_a_file_that_is_still_warm_is_not_remembered(tmp_path: Path, place: Path) -> None:
    """Two changes within one tick of the clock look like one."""
    path = tmp_path / "library"
    path.write_bytes(b"content")
    os.utime(path, ns=(0, 0))
    assert digests([path]) == (hashlib.sha256(b"content").hexdigest(),)
    assert not (place / "digests").exists()


def _writable_file(place: Path) -> None:
    (place / "digests").chmod(0o620)


def _writable_folder(place: Path) -> None:
    place.chmod(0o770)


def _foreign_file(place: Path) -> None:
    os.chown(place / "digests", 12345, -1)


def _foreign_folder(place: Path) -> None:
    os.chown(place, 12345, -1)


def _link(place: Path) -> None:
    (place / "digests").rename(place / "elsewhere")
    (place / "digests").symlink_to("elsewhere")


def _linked_folder(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


def _pipe(place: Path) -> None:
    (place / "digests").unlink()
    os.mkfifo(place / "digests", 0o600)


def _too_long(place: Path) -> None:
    (place / "digests").write_bytes((place / "digests").read_bytes() + b"\n" * contents._MOST_BYTES)


def _cut_off(place: Path) -> None:
    (place / "digests").write_bytes((place / "digests").read_bytes()[:-1])


def _one_digit(place: Path) -> None:
    data = bytearray((place / "digests").read_bytes())
    data[-2] ^= 1
    (place / "digests").write_bytes(data)


def _other_form(place: Path) -> None:
    rest = b"1 2 3\n\n\xff\xff 0 0 0 0 " + b"0" * 64 + b"\n"
    (place / "digests").write_bytes(contents._head(rest) + b"\n" + rest)


HOSTILE = (
    _writable_file, _writable_folder, _foreign_file, _foreign_folder, _link, _linked_folder, _pipe, _too_long, _cut_off,
    _one_digit, _other_form,
)  # fmt: skip


@pytest.mark.parametrize("damage", HOSTILE, ids=lambda damage: damage.__name__)
def test_a_damaged_or_untrusted_digest_file_is_ignored(place: Path, damage: Callable[[Path], None]) -> None:
    if "foreign" in damage.__name__ and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    digests(FILES)
    _falsify(place)
    damage(place)
    assert digests(FILES) == SHA256
    assert digests(FILES) == SHA256


NUMBERS = st.lists(st.integers(-(2**70), 2**70), min_size=4, max_size=6).map(lambda some: " ".join(map(str, some)))
DIGESTS = st.builds(lambda n, size: f"{n:0{size}x}", st.integers(0, 2**252 - 1), st.integers(63, 65))
LINES = st.lists(st.binary() | st.tuples(NUMBERS, DIGESTS).map(lambda t: " ".join(t).encode()))


@given(LINES)
def test_only_whole_lines_of_any_file_are_used(lines: list[bytes]) -> None:
    """Also under a checksum that is right; and what is believed is written as it was."""
    rest = b"\n".join(lines)
    known = contents._parse(rest)
    assert all(len(identity.split()) == 5 and len(digest) == 64 for identity, digest in known.items())
    assert contents._parse(contents._encode(known).partition(b"\n")[2]) == known
    for identity, digest in known.items():  # where two lines begin alike, the file is read again
        device, inode, size, modified, changed = map(int, identity.split())
        assert contents._remembered(rest, (device, inode, size, modified, changed)) in (None, digest.decode())


def test_without_a_place_to_write_files_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for home in (os.devnull, str(tmp_path / ("x" * 300))):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert digests(FILES) == SHA256


def test_a_killed_process_does_not_stop_the_next_and_a_live_writer_is_left_alone(place: Path) -> None:
    place.mkdir(parents=True, mode=0o700)
    left = place / "digests.new"
    left.write_bytes(b"x" * 9999)
    left.chmod(0o600)
    with left.open("rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_SH)
        assert digests(FILES) == SHA256
        assert (left.stat().st_size, (place / "digests").exists()) == (9999, False)
    digests(FILES)
    assert [path.name for path in place.iterdir()] == ["digests"]
    assert set(_stored(place).values()) == {each.encode() for each in SHA256}


def test_the_file_stays_within_its_bound(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_MOST_BYTES", 300)
    digests(FILES[:1])
    digests(FILES[1:])
    assert set(_stored(place).values()) == {SHA256[1].encode()}
    assert (place / "digests").stat().st_size <= 300


def test_a_missing_or_unreadable_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "library"
    with pytest.raises(CompilerMissing, match="no longer exists; reinstall its package"):
        WatchedFiles([path], lambda: "")
    path.mkdir()
    with pytest.raises(CompilerMissing, match=r"cannot read .*library \(Is a directory"):
        WatchedFiles([path], lambda: digests([path])[0])


def test_a_file_replaced_by_an_equal_one_counts_as_replaced(tmp_path: Path) -> None:
    """What was in use between may have been another."""
    path, other = tmp_path / "library", tmp_path / "other"
    path.write_bytes(b"content")
    watched = WatchedFiles([path], lambda: digests([path])[0])
    path.chmod(0o600)
    watched.check_unchanged("It")
    other.write_bytes(b"content")
    other.rename(path)
    with pytest.raises(CompilerMissing, match="It was replaced while this process ran"):
        watched.check_unchanged("It")


def test_a_file_patched_in_place_counts_as_replaced_though_its_times_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_bytes(b"content")
    watched = WatchedFiles([path], lambda: digests([path])[0])
    patch_in_place(path)
    with pytest.raises(CompilerMissing, match="It was replaced while this process ran"):
        watched.check_unchanged("It")

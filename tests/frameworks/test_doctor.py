"""Each thing that may be wrong with a cache is found, with its cure, and nothing in a sound one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine.frameworks.deletion import DELETED
from cache_engine.frameworks.doctor import CURES, Ailment, code_runs_on, examine, network_file_system, read_mounts
from cache_engine.frameworks.registry import load_sources, survey
from cache_engine.frameworks.values import Place
from tests.frameworks.fixtures import unpack

LOCAL = "/dev/sda / ext4 rw 0 0\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that Triton 3.9.0 made: four entries."""
    return Place("triton", unpack("triton", tmp_path), "given")


def _found(
    place: Place, mounts: str = LOCAL, runs_here: Callable[[str], bool] | None = None
) -> list[tuple[Ailment, str, str]]:
    found = (seen for _, seen in survey(load_sources(), [place]))
    return [(each.ailment, each.id, each.detail) for each in examine(place, found, runs_here=runs_here, mounts=mounts)]


def _folder(place: Place) -> Path:
    (found,) = [path.parent for path in place.path.glob("*/tile.ptx")]
    return found


def test_nothing_is_wrong_with_a_sound_cache(place: Place) -> None:
    assert _found(place) == []


def test_a_group_without_a_file_is_partial(place: Place) -> None:
    folder = _folder(place)
    (folder / "tile.cubin").unlink()
    assert _found(place) == [(Ailment.PARTIAL, folder.name, "a file of it is missing")]


def test_an_empty_file_of_a_complete_entry_is_found(place: Place) -> None:
    folder = _folder(place)
    (folder / "tile.cubin").write_bytes(b"")
    assert _found(place) == [(Ailment.EMPTY, folder.name, f"{folder.name}/tile.cubin")]


def test_a_temporary_file_is_a_leftover_once_its_writer_must_have_ended(place: Place) -> None:
    folder = _folder(place)
    (folder / "tmp.pid_1_x").mkdir()
    left = folder / "tmp.pid_1_x" / "tile.cubin"
    left.write_bytes(b"half")
    assert _found(place) == []
    os.utime(left, (time.time() - 3600,) * 2)
    assert _found(place) == [(Ailment.LEFTOVER, folder.name, f"{folder.name}/tmp.pid_1_x/tile.cubin")]


def test_what_a_killed_cleaning_left_is_a_leftover_and_nothing_else(place: Place) -> None:
    folder = _folder(place)
    folder.rename(folder.with_name(f"{DELETED}x"))
    assert _found(place) == [(Ailment.LEFTOVER, f"{DELETED}x", "a cleaning was killed")]


def test_a_cache_that_was_moved_points_elsewhere(place: Place) -> None:
    before = str(place.path)
    place.path.rename(place.path.with_name("moved"))
    found = _found(Place("triton", place.path.with_name("moved"), "given"))
    assert {ailment for ailment, _, _ in found} == {Ailment.ELSEWHERE}
    assert len(found) == 4
    assert all(detail.startswith(before) for _, _, detail in found)


def test_a_cache_behind_a_link_points_to_itself(place: Place) -> None:
    place.path.rename(place.path.with_name("real"))
    place.path.symlink_to("real")
    assert _found(place) == []
    assert _found(Place("triton", place.path.with_name("real"), "given")) == []


def test_code_that_does_not_run_on_this_gpu_is_found(place: Place) -> None:
    found = _found(place, runs_here=code_runs_on("sm_90a"))
    assert [(ailment, detail) for ailment, _, detail in found] == [(Ailment.OTHER_GPU, "sm_80")]
    assert {detail for _, _, detail in _found(place, runs_here=code_runs_on("sm_86"))} == {"sm_90a"}
    assert code_runs_on("sm_90a")("sm_999")


def test_a_directory_or_library_that_others_may_write_is_found(place: Place) -> None:
    place.path.chmod(0o777)
    assert _found(place) == [(Ailment.UNSAFE, "", "triton can be written by everyone")]
    place.path.chmod(0o700)
    library = place.path / ("A" * 52) / "cuda_utils.so"
    library.parent.mkdir()
    library.write_bytes(b"code")
    library.chmod(0o666)
    assert _found(place) == [(Ailment.UNSAFE, "A" * 52, "cuda_utils.so can be written by everyone")]


def test_a_network_file_system_is_found_and_libraries_on_it(place: Place) -> None:
    library = place.path / ("A" * 52) / "cuda_utils.so"
    library.parent.mkdir()
    library.write_bytes(b"code")
    assert _found(place, mounts=f"{LOCAL}server:/x {place.path} nfs4 rw 0 0\n") == [
        (Ailment.NETWORK, "", "it is on nfs4"),
        (Ailment.NETWORK, "A" * 52, f"{'A' * 52}/cuda_utils.so is a library for one kind of host"),
    ]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/a", ""), ("/mnt", "nfs4"), ("/mnt/x", "nfs4"), ("/mntx", ""), ("/mnt/local/x", ""), ("/my disk", "fuse.sshfs")],
)
def test_the_nearest_mount_decides(path: str, kind: str) -> None:
    mounts = f"{LOCAL}s:/x /mnt nfs4 rw 0 0\n/dev/sdb /mnt/local ext4 rw\nh:/ /my\\040disk fuse.sshfs rw\nbroken\n"
    assert network_file_system(Path(path), mounts) == kind


def test_what_is_unread_is_a_finding_and_every_ailment_has_a_cure(place: Place) -> None:
    (place.path / "link").symlink_to("/etc")
    ((ailment, name, detail),) = _found(place)
    assert (ailment, name) == (Ailment.UNREAD, "link")
    assert detail.startswith("not a regular file: ")
    assert CURES.keys() == set(Ailment)


def test_the_mounts_of_this_machine_are_read() -> None:
    assert " / " in read_mounts()

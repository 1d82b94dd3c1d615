"""Checking and repairing: every kind of damage is named, nothing sound is touched, nothing is deleted unseen."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.presenters.admin import repair_line
from cache_engine.frameworks.bundles import Group, put_group
from cache_engine.model.events import CORRUPT, REPAIR, SET_ASIDE
from cache_engine.store import lock
from cache_engine.store.codec import decode_record, encode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import read_file
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.lock import file_lock, try_lock
from cache_engine.upkeep import cleanup, integrity, parallel
from cache_engine.upkeep.cleanup import apply, plan_cleaning
from cache_engine.upkeep.findings import Finding, FindingKind
from cache_engine.upkeep.plan import Limits
from tests.helpers import blob_file, files_of, fill, make_entry, publish, record_file
from tests.upkeep.damages import (
    DAMAGE,
    age,
    flip,
    flipped_code,
    old_blob_left_behind,
    orphan_blob,
    stale_temporary,
    stray_file,
)


def _check(store: DiskStore) -> list[Finding]:
    return list(integrity.check(store))


def test_a_sound_store_has_no_findings(store: DiskStore) -> None:
    fill(store, 20)
    assert _check(store) == []


@pytest.mark.parametrize(("damage", "kinds"), DAMAGE, ids=[damage.__name__ for damage, _ in DAMAGE])
def test_damage_is_named_repaired_and_then_gone(
    store: DiskStore, journal: Journal, damage: Callable[[DiskStore], None], kinds: list[FindingKind]
) -> None:
    sound = fill(store, 5)
    damage(store)
    files = {path: path.read_bytes() for path in files_of(store)}
    findings = _check(store)
    assert {path: path.read_bytes() for path in files_of(store)} == files, "checking has changed something"
    assert [finding.kind for finding in findings] == kinds
    assert all(finding.cause and (store.layout.root / finding.path).exists() for finding in findings)
    assert integrity.repair(store, journal, findings) == findings
    assert _check(store) == []
    # Sound entries are still served, and all that was taken out is in quarantine, except for temporaries.
    assert all(store.get(key) is not None for key in sound)
    kept = {path.read_bytes() for path in (*files_of(store), *store.layout.quarantine.iterdir())}
    assert set(files.values()) - kept == ({b"half"} if damage is stale_temporary else set())


def test_children_find_what_one_process_finds(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store of sound, damaged, torn and newer entries, with something in quarantine; progress is the same too."""
    fill(store, 40)
    for damage, _ in DAMAGE:
        damage(store)
    store.quarantine(publish(store, 1000))
    newer = record_file(store, publish(store, 1001))
    newer.write_bytes(newer.read_bytes().replace(b'"format":2', b'"format":3'))
    monkeypatch.setattr(parallel, "_ALONE_S", 0.0)
    seen: list[tuple[list[Finding], int]] = []
    for processes in (1, 2, 5):
        checked: list[None] = []
        seen.append((list(integrity.check(store, partial(checked.append, None), processes=processes)), len(checked)))
    assert seen[0] == seen[1] == seen[2]
    assert {finding.kind for finding in seen[0][0]} > {kind for _, kinds in DAMAGE for kind in kinds}


def test_repair_is_noted_for_the_audit(store: DiskStore, journal: Journal) -> None:
    flipped_code(store)
    stray_file(store)
    integrity.repair(store, journal, _check(store), by="somebody")
    tally = read_journal(store.layout.journal)
    assert sorted(event.kind for event in tally.recent) == [CORRUPT, REPAIR, SET_ASIDE]
    assert tally.totals.corruptions == 1
    assert {event.by for event in tally.recent if event.kind == REPAIR} == {"somebody"}


def test_kernels_of_other_frameworks_count_as_checked(store: DiskStore) -> None:
    fill(store, 2)
    put_group(store.layout, Group("triton", "ABC234", "scale.json", {"scale.json": b"{}"}), durable=False)
    read: list[int] = []
    assert list(integrity.check(store, partial(read.append, 1))) == []
    assert len(read) == 3


@pytest.mark.parametrize("damage", [damage for damage, _ in DAMAGE], ids=lambda damage: damage.__name__)
def test_a_repair_plan_names_the_files_that_repair_takes_away(
    store: DiskStore, journal: Journal, damage: Callable[[DiskStore], None]
) -> None:
    fill(store, 3)
    damage(store)
    before = {str(path.relative_to(store.layout.root)): path.stat().st_size for path in files_of(store)}
    acts = integrity.plan_repair(store, _check(store))
    assert {str(path.relative_to(store.layout.root)) for path in files_of(store)} == set(before), (
        "planning did something"
    )
    integrity.repair(store, journal, [act.finding for act in acts])
    after = {str(path.relative_to(store.layout.root)) for path in files_of(store)}
    planned = dict(file for act in acts for file in act.files)
    assert planned == {path: size for path, size in before.items() if path not in after}
    assert {act.act for act in acts} == ({"delete"} if damage is stale_temporary else {"quarantine"})


def test_an_unknown_format_is_reported_and_left_unchanged(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    record_file(store, key).write_bytes(b'{"format": 99, "new": true}')
    age(blob_file(store, key))
    (finding,) = _check(store)
    assert finding.kind is FindingKind.UNKNOWN_FORMAT
    assert integrity.repair(store, journal, [finding]) == []
    assert record_file(store, key).exists()
    assert blob_file(store, key).exists()


def test_a_publish_under_way_is_no_finding(store: DiskStore) -> None:
    """A blob whose record is about to come, and a temporary being written."""
    key = publish(store)
    record_file(store, key).unlink()
    with (store.layout.temp / "1234-abcd").open("xb") as temporary, file_lock(store.layout.key_lock(key), 0):
        assert try_lock(temporary.fileno())
        assert _check(store) == []
    assert [finding.kind for finding in _check(store)] == [FindingKind.ORPHAN_BLOB, FindingKind.STALE_TEMPORARY]


def test_where_locks_do_not_work_age_decides(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(cleanup, "try_lock", fails)
    monkeypatch.setattr(lock, "try_lock", fails)
    key = publish(store)
    record_file(store, key).unlink()
    temporary = store.layout.temp / "1234-abcd"
    temporary.touch()
    assert _check(store) == []
    age(temporary)
    age(blob_file(store, key))
    assert [finding.kind for finding in _check(store)] == [FindingKind.ORPHAN_BLOB, FindingKind.STALE_TEMPORARY]


def test_a_time_in_the_future_does_not_hide_an_orphan(store: DiskStore) -> None:
    key = publish(store)
    record_file(store, key).unlink()
    path = blob_file(store, key)
    os.utime(path, (time.time() + 10**7, time.time() + 10**7))
    assert [finding.kind for finding in _check(store)] == [FindingKind.ORPHAN_BLOB]


def test_an_entry_replaced_since_the_check_is_spared(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    flip(blob_file(store, key))
    findings = _check(store)
    store.delete(key)
    publish(store)
    assert integrity.repair(store, journal, findings) == []
    assert store.get(key) is not None


def test_an_orphan_that_got_its_record_since_the_check_is_spared(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    record = record_file(store, key).read_bytes()
    record_file(store, key).unlink()
    age(blob_file(store, key))
    findings = _check(store)
    assert [finding.kind for finding in findings] == [FindingKind.ORPHAN_BLOB]
    record_file(store, key).write_bytes(record)
    assert integrity.repair(store, journal, findings) == []
    assert store.get(key) is not None


def test_a_file_with_a_read_error_is_reported_and_unchanged(
    store: DiskStore, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = publish(store)

    def failing(path: Any, limit: int, **trust: bool) -> bytes | None:
        if "/metadata/" in str(path):
            raise OSError(5, "Input/output error")
        return read_file(path, limit, **trust)

    monkeypatch.setattr(integrity, "read_file", failing)
    findings = _check(store)
    assert [(finding.kind, finding.cause) for finding in findings] == [(FindingKind.UNREADABLE, "Input/output error")]
    assert integrity.repair(store, journal, findings) == []
    monkeypatch.undo()
    assert store.get(key) is not None


def test_a_file_without_read_permission_is_quarantined(
    store: DiskStore, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = publish(store)

    def refusing(path: Any, limit: int, **trust: bool) -> bytes | None:
        if str(path).startswith(str(store.layout.kernels)):
            raise PermissionError(13, "Permission denied")
        return read_file(path, limit, **trust)

    monkeypatch.setattr(integrity, "read_file", refusing)  # root may read everything
    findings = _check(store)
    assert [(finding.kind, finding.cause) for finding in findings] == [(FindingKind.FORBIDDEN, "Permission denied")]
    assert integrity.repair(store, journal, findings) == findings
    assert store.get(key) is None
    assert len(list(store.layout.quarantine.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_quarantined_unless_trusted(store: DiskStore, journal: Journal) -> None:
    keys = fill(store, 2)
    os.chown(blob_file(store, keys[0]), 12345, 12345)
    os.chown(record_file(store, keys[1]), 12345, 12345)
    assert list(integrity.check(store, trust=True)) == []
    findings = _check(store)
    assert {(finding.kind, finding.cause.partition(" ")[2]) for finding in findings} == {
        (FindingKind.FOREIGN_OWNER, "belongs to user 12345, not to you")
    }
    assert integrity.repair(store, journal, findings) == findings
    assert _check(store) == []
    assert all(store.get(key) is None for key in keys)


def test_a_sample_reads_a_share_of_the_entries_and_all_names(store: DiskStore) -> None:
    fill(store, 200)
    orphan_blob(store)
    stale_temporary(store)
    read = 0

    def one_more() -> None:
        nonlocal read
        read += 1

    findings = list(integrity.check(store, one_more, share=0.3))
    assert 20 < read < 120  # 60 are expected; to be as far off is less likely than one in a billion
    assert [finding.kind for finding in findings] == [FindingKind.ORPHAN_BLOB, FindingKind.STALE_TEMPORARY]


def test_a_sample_does_not_judge_blobs_whose_record_it_did_not_read(store: DiskStore) -> None:
    old_blob_left_behind(store)
    assert [finding.kind for finding in integrity.check(store)] == [FindingKind.ORPHAN_BLOB]
    assert list(integrity.check(store, share=1e-12)) == []


def test_samples_find_damage_in_the_end(store: DiskStore) -> None:
    fill(store, 5)
    flipped_code(store)
    found = [list(integrity.check(store, share=0.5)) for _ in range(60)]
    assert {len(findings) for findings in found} == {0, 1}


def test_damage_of_all_kinds_at_once_is_named_and_repaired(store: DiskStore, journal: Journal) -> None:
    fill(store, 5)
    expected: list[FindingKind] = []
    for damage, kinds in DAMAGE:
        damage(store)
        expected += kinds
    findings = _check(store)
    assert sorted(finding.kind for finding in findings) == sorted(expected)
    assert integrity.repair(store, journal, findings) == findings
    assert _check(store) == []


def test_a_damaged_snapshot_is_quarantined(store: DiskStore, journal: Journal) -> None:
    snapshot = store.layout.journal / "snapshot.json"
    snapshot.write_text('{"format": 1, "totals"')
    findings = _check(store)
    assert [finding.kind for finding in findings] == [FindingKind.CORRUPT_SNAPSHOT]
    assert integrity.repair(store, journal, findings) == findings
    assert not snapshot.exists()
    assert [path.read_text() for path in store.layout.quarantine.iterdir()] == ['{"format": 1, "totals"']
    snapshot.write_text('{"format": 99}')
    findings = _check(store)
    assert [finding.kind for finding in findings] == [FindingKind.UNKNOWN_FORMAT]
    assert integrity.repair(store, journal, findings) == []


def test_a_link_is_quarantined_and_its_target_stays(store: DiskStore, journal: Journal, tmp_path: Path) -> None:
    key = publish(store)
    mine = record_file(store, key).rename(tmp_path / "mine")
    record_file(store, key).symlink_to(mine)
    findings = _check(store)
    assert [finding.kind for finding in findings] == [FindingKind.CORRUPT_RECORD]
    assert integrity.repair(store, journal, findings) == findings
    assert mine.exists()
    assert not record_file(store, key).is_symlink()


def test_an_entry_replaced_while_it_is_checked_is_no_finding(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading its record and its blob, both were replaced."""
    key, artifact, describe = make_entry()
    store.publish(key, artifact, describe)
    newer = type(artifact)(artifact.cubin + b"newer", artifact.ptx, artifact.source, artifact.log, artifact.resources)
    replaced: list[str] = []

    def replacing(wanted: Any, data: bytes) -> Any:
        if not replaced:
            replaced.append(wanted)
            store.publish(key, newer, describe)
        return decode_record(wanted, data)

    monkeypatch.setattr(integrity, "decode_record", replacing)
    assert _check(store) == []
    assert replaced == [key]


def test_components_of_another_key_are_found(store: DiskStore) -> None:
    """A record whose checksum fits, made up by hand."""
    import msgspec

    key, artifact, describe = make_entry(3)
    record = store.publish(key, artifact, describe)
    forged = msgspec.structs.replace(record, components=(("schema", "1"), ("family", "forged")))
    record_file(store, key).write_bytes(encode_record(forged))
    assert [finding.kind for finding in _check(store)] == [FindingKind.CORRUPT_RECORD]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("of", ["kernels", "metadata"])
def test_a_folder_of_entries_that_others_may_write_is_named_and_closed(
    store: DiskStore, journal: Journal, of: str, mode: int
) -> None:
    key = publish(store, 1)
    folder = store.layout.root / of / key[:2]
    os.chown(folder, -1, 12345 if os.geteuid() == 0 else -1)
    folder.chmod(mode)
    (finding,) = _check(store)
    assert (finding.kind, finding.path) == (FindingKind.OPEN_FOLDER, f"{of}/{key[:2]}")
    assert (finding.is_damage, "can be written by" in finding.cause) == (True, True)
    assert list(integrity.check(store, trust=True)) == []
    (act,) = integrity.plan_repair(store, [finding])
    assert (act.act, act.files) == ("close", ())
    assert repair_line([act]) == "1 folder: closed to others"
    assert integrity.repair(store, journal, [finding]) == [finding]
    assert folder.stat().st_mode & 0o7777 == mode & ~0o022
    assert _check(store) == []
    assert store.get(key) is not None
    assert integrity.repair(store, journal, [finding]) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_entries_of_another_user_is_named_and_unchanged(store: DiskStore, journal: Journal) -> None:
    folder = store.layout.kernels / publish(store, 1)[:2]
    os.chown(folder, 12345, 12345)
    (finding,) = _check(store)
    assert (finding.kind, finding.repairable, finding.is_damage) == (FindingKind.FOREIGN_FOLDER, False, True)
    assert [act.act for act in integrity.plan_repair(store, [finding])] == ["leave"]
    assert integrity.repair(store, journal, [finding]) == []


def test_what_is_in_the_place_of_a_folder_of_entries_is_quarantined(
    store: DiskStore, journal: Journal, tmp_path: Path
) -> None:
    os.mkfifo(store.layout.kernels / "00")
    (store.layout.metadata / "11").symlink_to(tmp_path)
    findings = _check(store)
    assert [(finding.kind, finding.path) for finding in findings] == [
        (FindingKind.MISNAMED, "kernels/00"),
        (FindingKind.MISNAMED, "metadata/11"),
    ]
    assert integrity.repair(store, journal, findings) == findings
    assert _check(store) == []
    assert tmp_path.is_dir()


def test_through_a_link_in_place_of_a_folder_of_entries_nothing_is_written_or_deleted(
    store: DiskStore, journal: Journal, tmp_path: Path
) -> None:
    key = publish(store, 1)
    moved = [tmp_path / folder.name for folder in (store.layout.metadata, store.layout.kernels)]
    for folder, target in zip((store.layout.metadata, store.layout.kernels), moved, strict=True):
        (folder / key[:2]).rename(target)
        (folder / key[:2]).symlink_to(target)
    orphan = moved[1] / f"{key}-{'0' * 16}"
    orphan.touch()
    before = [sorted(target.iterdir()) for target in moved]
    with pytest.raises(PermissionError, match="is a link, not a folder; gemm-cache verify --repair moves it"):
        publish(store, 1)
    assert apply(store, journal, plan_cleaning(store, Limits(everything=True))).evicted == 0
    assert [sorted(target.iterdir()) for target in moved] == before
    assert integrity.repair(store, journal, _check(store))
    assert publish(store, 1) == key
    assert [sorted(target.iterdir()) for target in moved] == before
    trusted = DiskStore(msgspec.structs.replace(store.layout, trust=True))
    shutil.rmtree(store.layout.metadata / key[:2])
    (store.layout.metadata / key[:2]).symlink_to(moved[0])
    assert list(trusted.keys()) == [key]
    assert publish(trusted, 1) == key

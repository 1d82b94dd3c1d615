"""Damaged timings are found and moved to quarantine, and all that is sound is read.

Every timing here is invented: input for the store, not a measurement.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import UnknownResults
from cache_engine.store.timings import Timings, encode
from cache_engine.upkeep import integrity
from cache_engine.upkeep.findings import FindingKind
from tests.helpers import INVENTED_GPU, invented_timing
from tests.store.old_results import write_log
from tests.store.test_timings import CONFIG, DIGEST, OTHER_GPU, PROBLEM, fill_timings, medians, snapshot_file


def log_of_0_2(layout: StoreLayout, *medians_us: float, device: DeviceFingerprint = INVENTED_GPU) -> Path:
    """A log of timings, as that version wrote, and as yet without a file to merge it into."""
    made = [invented_timing(PROBLEM, CONFIG, median, device=device) for median in medians_us]
    entries = {f"timing-{number}": encode(one) for number, one in enumerate(made)}
    return write_log(layout.for_timings(), DIGEST, entries)


def test_a_damaged_file_is_quarantined_and_a_log_of_0_2_still_counts(
    store: DiskStore, caplog: pytest.LogCaptureFixture
) -> None:
    fill_timings(store.layout, 3)
    log = log_of_0_2(store.layout, 1.0)
    snapshot_file(store.layout).write_bytes(b'{"version": "0')
    assert medians(store.layout) == [1.0]
    assert "damaged" in caplog.text
    assert list(store.layout.quarantine.iterdir()) == [], "reading changes nothing"
    fill_timings(store.layout, 2)
    assert [path.read_bytes() for path in store.layout.quarantine.iterdir()] == [b'{"version": "0']
    assert medians(store.layout) == [1.0, 1.0, 2.0]
    assert not log.exists()


def test_a_torn_file_keeps_each_timing_whose_own_checksum_is_right(store: DiskStore) -> None:
    fill_timings(store.layout, 100)
    path = snapshot_file(store.layout)
    whole = path.read_bytes()
    torn = whole[: whole.index(b'"median_us":60.0')] + b"}"
    path.write_bytes(torn)
    assert medians(store.layout) == [float(number) for number in range(1, 60)]
    findings = list(integrity.check(store))
    assert [finding.kind for finding in findings] == [FindingKind.CORRUPT_TIMINGS]
    assert integrity.repair(store, Journal(store.layout.journal, 3600.0), findings) == findings
    assert list(integrity.check(store)) == []
    assert [aside.read_bytes() for aside in store.layout.quarantine.iterdir()] == [torn]
    assert medians(store.layout) == [float(number) for number in range(1, 60)]


def test_one_damaged_timing_is_skipped_with_a_warning(store: DiskStore, caplog: pytest.LogCaptureFixture) -> None:
    fill_timings(store.layout, 3)
    path = snapshot_file(store.layout)
    path.write_bytes(path.read_bytes().replace(b'"median_us":2.0', b'"median_us":0.5'))
    assert medians(store.layout) == [1.0, 3.0]
    assert "a timing does not match its checksum; it is skipped" in caplog.text


def test_timings_of_another_device_in_a_devices_file_are_skipped(store: DiskStore) -> None:
    log_of_0_2(store.layout, 9.0, device=OTHER_GPU)
    fill_timings(store.layout, 1)
    assert medians(store.layout) == [1.0]


def test_an_unknown_format_is_left_alone(store: DiskStore, timings: Timings) -> None:
    fill_timings(store.layout, 1)
    path = snapshot_file(store.layout)
    path.write_bytes(json.dumps({**json.loads(path.read_bytes()), "cache_format_version": "9.0"}).encode())
    before = path.read_bytes()
    with pytest.raises(UnknownResults, match=r"9\.0"):
        timings.add([invented_timing(PROBLEM, CONFIG, 2.0)])
    assert list(timings) == []
    (finding,) = integrity.check(store)
    assert (finding.kind, finding.is_damage) == (FindingKind.UNKNOWN_FORMAT, False)
    assert path.read_bytes() == before


def _flipped_in_the_file(layout: StoreLayout) -> None:
    fill_timings(layout, 3)
    path = snapshot_file(layout)
    path.write_bytes(path.read_bytes().replace(b'"median_us":2.0', b'"median_us":0.5'))


def _flipped_in_a_log(layout: StoreLayout) -> None:
    path = log_of_0_2(layout, 1.0, 2.0, 3.0)
    path.write_bytes(path.read_bytes().replace(b'"median_us":2.0', b'"median_us":0.5'))


def _half_written(layout: StoreLayout) -> None:
    """What a killed writer left, once another had written after it."""
    path = log_of_0_2(layout, 1.0, 2.0, 3.0)
    data = path.read_bytes()
    start = data.rindex(b"\n", 0, data.index(b'"median_us":2.0')) + 1
    path.write_bytes(data[:start] + data[start : start + 100] + data[data.index(b"\n", start) :])


@pytest.mark.parametrize("damage", [_flipped_in_the_file, _flipped_in_a_log, _half_written])
def test_damage_is_found_and_quarantined_and_the_rest_still_serves(store: DiskStore, damage: object) -> None:
    damage(store.layout)  # type: ignore[operator]
    files = {path: path.read_bytes() for path in store.layout.timings.iterdir()}
    (finding,) = findings = list(integrity.check(store))
    where = "results" if finding.path.endswith(".json") else "lines"
    assert (finding.kind, finding.cause) == (FindingKind.CORRUPT_TIMINGS, f"1 of 3 {where} are damaged")
    assert {path: path.read_bytes() for path in store.layout.timings.iterdir()} == files, "checking changes nothing"
    journal = Journal(store.layout.journal, 3600.0)
    assert integrity.repair(store, journal, findings) == findings
    assert list(integrity.check(store)) == []
    assert medians(store.layout) == [1.0, 3.0]
    damaged = files[store.layout.root / finding.path]
    assert [path.read_bytes() for path in store.layout.quarantine.iterdir()] == [damaged]
    fill_timings(store.layout, 1)
    assert list(integrity.check(store)) == []


def test_an_unreadable_file_is_found_and_quarantined(store: DiskStore) -> None:
    fill_timings(store.layout, 2)
    snapshot_file(store.layout).write_bytes(b"\0" * 1000)
    (store.layout.timings / "notes.txt").write_text("mine")
    findings = list(integrity.check(store))
    assert [finding.kind for finding in findings] == [FindingKind.MISNAMED, FindingKind.CORRUPT_TIMINGS]
    assert snapshot_file(store.layout).read_bytes() == b"\0" * 1000, "checking changes nothing"
    assert integrity.repair(store, Journal(store.layout.journal, 3600.0), findings) == findings
    assert list(integrity.check(store)) == []
    assert medians(store.layout) == []
    assert {b"\0" * 1000, b"mine"} <= {path.read_bytes() for path in store.layout.quarantine.iterdir()}

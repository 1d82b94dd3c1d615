"""Damaged timings are found and moved to quarantine, and all that is sound is read.

Every timing here is invented: input for the store, not a measurement.
"""

from __future__ import annotations

import json

import pytest

from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results.file import UnknownResults
from cache_engine.store.timings import Timings
from cache_engine.upkeep import integrity
from cache_engine.upkeep.integrity import Kind
from tests.helpers import invented_timing
from tests.store.test_timings import CONFIG, DIGEST, OTHER_GPU, PROBLEM, fill_timings, medians, snapshot_file


def test_a_damaged_file_is_quarantined_and_the_log_still_counts(
    store: DiskStore, caplog: pytest.LogCaptureFixture
) -> None:
    fill_timings(store.layout, 3)
    Timings(store.layout)._file(DIGEST).fold()
    fill_timings(store.layout, 1)
    snapshot_file(store.layout).write_bytes(b'{"version": "0')
    assert medians(store.layout) == [1.0]
    assert "damaged" in caplog.text
    assert list(store.layout.quarantine.iterdir()) == [], "reading changes nothing"
    fill_timings(store.layout, 2)
    assert [path.read_bytes() for path in store.layout.quarantine.iterdir()] == [b'{"version": "0']
    assert medians(store.layout) == [1.0, 1.0, 2.0]


def test_a_torn_file_keeps_each_timing_whose_own_checksum_is_right(store: DiskStore) -> None:
    fill_timings(store.layout, 100)
    Timings(store.layout)._file(DIGEST).fold()
    path = snapshot_file(store.layout)
    whole = path.read_bytes()
    torn = whole[: whole.index(b'"median_us":60.0')] + b"}"
    path.write_bytes(torn)
    assert medians(store.layout) == [float(number) for number in range(1, 60)]
    findings = list(integrity.check(store))
    assert [finding.kind for finding in findings] == [Kind.CORRUPT_TIMINGS]
    assert integrity.repair(store, Journal(store.layout.journal, 3600.0), findings) == findings
    assert list(integrity.check(store)) == []
    assert [aside.read_bytes() for aside in store.layout.quarantine.iterdir()] == [torn]
    assert medians(store.layout) == [float(number) for number in range(1, 60)]


def test_one_damaged_timing_is_skipped_with_a_warning(store: DiskStore, caplog: pytest.LogCaptureFixture) -> None:
    fill_timings(store.layout, 3)
    Timings(store.layout)._file(DIGEST).fold()
    path = snapshot_file(store.layout)
    path.write_bytes(path.read_bytes().replace(b'"median_us":2.0', b'"median_us":0.5'))
    assert medians(store.layout) == [1.0, 3.0]
    assert "a timing does not match its checksum; it is skipped" in caplog.text


def test_timings_of_another_device_in_a_devices_file_are_skipped(store: DiskStore) -> None:
    fill_timings(store.layout, 1)
    Timings(store.layout).add([invented_timing(PROBLEM, CONFIG, 9.0, device=OTHER_GPU)])
    layout = store.layout.for_timings()
    layout.results_log(OTHER_GPU.digest(), 0).replace(layout.results_log(DIGEST, 1))
    assert medians(store.layout) == [1.0]


def test_an_unknown_format_is_left_alone(store: DiskStore, timings: Timings) -> None:
    fill_timings(store.layout, 1)
    Timings(store.layout)._file(DIGEST).fold()
    path = snapshot_file(store.layout)
    path.write_bytes(json.dumps({**json.loads(path.read_bytes()), "cache_format_version": "9.0"}).encode())
    before = path.read_bytes()
    with pytest.raises(UnknownResults, match=r"9\.0"):
        timings.add([invented_timing(PROBLEM, CONFIG, 2.0)])
    assert list(timings) == []
    (finding,) = integrity.check(store)
    assert (finding.kind, finding.is_damage) == (Kind.UNKNOWN_FORMAT, False)
    assert path.read_bytes() == before


def _flipped_in_the_snapshot(layout: StoreLayout) -> None:
    Timings(layout)._file(DIGEST).fold()
    path = snapshot_file(layout)
    path.write_bytes(path.read_bytes().replace(b'"median_us":2.0', b'"median_us":0.5'))


def _flipped_in_the_log(layout: StoreLayout) -> None:
    (path,) = layout.timings.glob("*.log")
    path.write_bytes(path.read_bytes().replace(b'"median_us":2.0', b'"median_us":0.5'))


def _half_written(layout: StoreLayout) -> None:
    """What a killed writer leaves, once another has written after it."""
    (path,) = layout.timings.glob("*.log")
    data = path.read_bytes()
    start = data.rindex(b"\n", 0, data.index(b'"median_us":2.0')) + 1
    path.write_bytes(data[:start] + data[start : start + 100] + data[data.index(b"\n", start) :])


@pytest.mark.parametrize("damage", [_flipped_in_the_snapshot, _flipped_in_the_log, _half_written])
def test_damage_is_found_and_quarantined_and_the_rest_still_serves(store: DiskStore, damage: object) -> None:
    fill_timings(store.layout, 3)
    damage(store.layout)  # type: ignore[operator]
    files = {path: path.read_bytes() for path in store.layout.timings.iterdir()}
    (finding,) = findings = list(integrity.check(store))
    where = "results" if finding.path.endswith(".json") else "lines"
    assert (finding.kind, finding.cause) == (Kind.CORRUPT_TIMINGS, f"1 of 3 {where} are damaged")
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
    assert [finding.kind for finding in findings] == [Kind.MISNAMED, Kind.CORRUPT_TIMINGS]
    assert snapshot_file(store.layout).read_bytes() == b"\0" * 1000, "checking changes nothing"
    assert integrity.repair(store, Journal(store.layout.journal, 3600.0), findings) == findings
    assert list(integrity.check(store)) == []
    assert medians(store.layout) == [1.0, 2.0]
    assert {b"\0" * 1000, b"mine"} <= {path.read_bytes() for path in store.layout.quarantine.iterdir()}

"""Timings are stored: none is lost, damaged ones are quarantined, and those of other versions are preserved.

Every timing here is invented: input for the store, not a measurement.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
from xxhash import xxh3_64_hexdigest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.errors import CorruptEntry
from cache_engine.gpu.timer import Timing
from cache_engine.index import summaries
from cache_engine.index.sync import Index
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.outcome import Failure
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import NewResult
from cache_engine.store.timings import Timings, decode, encode
from cache_engine.upkeep import integrity
from cache_engine.upkeep.findings import FindingKind
from cache_engine.upkeep.plan import Limits
from tests.helpers import INVENTED_GPU, fill, invented_timing, make_entry

PROBLEM = GemmProblem(16, 4096, 7168, arch="sm_90")
CONFIG = KernelConfig(64, 64, 32, 2, 2, 3)
OTHER_GPU = msgspec.structs.replace(INVENTED_GPU, driver="13.1")
DIGEST = INVENTED_GPU.digest()


def fill_timings(layout: StoreLayout, count: int) -> None:
    """Adds timings of the invented GPU: the first so many times in µs."""
    kept = Timings(layout, durable=False)
    kept.add(invented_timing(PROBLEM, CONFIG, float(number)) for number in range(1, count + 1))
    kept.close()


def medians(layout: StoreLayout) -> list[float]:
    return sorted(one.median_us for one in Timings(layout))


def snapshot_file(layout: StoreLayout) -> Path:
    return layout.for_timings().results_file(DIGEST)


def test_all_that_was_measured_comes_back_in_another_process(store: DiskStore, timings: Timings) -> None:
    made = invented_timing(PROBLEM, CONFIG, 12.5, tflops=75.0, repeats=50, max_rel_error=1e-3)
    timings.add([made])
    timings.close()
    assert list(Timings(store.layout)) == [made]
    code = (
        "import sys\nfrom pathlib import Path\nfrom cache_engine.store.disk import open_store\n"
        "from cache_engine.store.timings import Timings\n"
        "(one,) = Timings(open_store(Path(sys.argv[1])))\nprint(one.median_us, one.device.name, one.problem.n)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.layout.root)], capture_output=True, text=True)
    assert done.stdout == "12.5 Invented GPU 4096\n", done.stderr


def test_every_field_of_a_timing_is_stored_even_those_of_later_versions(cache: Cache) -> None:
    """No code on the way names them."""

    @dataclass(frozen=True, slots=True)
    class LaterTiming(Timing):
        sm_temperature: int | None = 61
        samples_us: tuple[float, ...] = (1.0, 2.0)

    values = {field.name: 1.5 for field in fields(Timing) if field.name not in ("device", "verified")}
    timing = LaterTiming(device=INVENTED_GPU, verified=True, **values)  # type: ignore[arg-type]
    kernel = cache.get_or_compile(GemmProblem(8, 8, 8, dtype="fp32", arch="sm_90"))
    assert cache.keep_timing(kernel, timing) is None
    (kept,) = cache.timings
    expected = {**msgspec.to_builtins(timing)}
    del expected["device"]
    assert kept.timing == msgspec.json.decode(msgspec.json.encode(expected))
    assert {"sm_temperature", "samples_us", *values} <= set(kept.timing)
    assert (kept.device, kept.key, kept.config) == (INVENTED_GPU, kernel.key, kernel.record.config)
    assert (kept.family, kept.compiler, kept.arch, kept.config_from) == ("simt", "nvrtc", "sm_90", "cost model")
    assert (kept.problem.m, kept.problem.n, kept.problem.k, kept.problem.dtype) == (8, 8, 8, "fp32")
    assert kept.measured_by.startswith("gemm-cache ")


def test_a_value_that_is_not_a_number_is_stored_as_empty() -> None:
    """JSON has no NaN; an element never written makes the error one."""
    back = decode(encode(invented_timing(PROBLEM, CONFIG, 3.0, max_rel_error=float("nan"), verified=False)))
    assert back.timing["max_rel_error"] is None
    assert not back.verified


def test_a_timing_with_fields_of_a_later_version_is_read_and_one_of_an_earlier_too() -> None:
    """The checksum is that of the bytes, not of what this version makes of them."""

    def changed(change: dict[str, object], drop: str = "") -> bytes:
        inner = json.loads(encode(invented_timing(PROBLEM, CONFIG, 3.0)))["measurement"]
        inner["problem"].pop(drop, None)
        inner["problem"].update(change)
        raw = json.dumps(inner).encode()
        return b'{"checksum": "xxh3:%b", "measurement": %b}' % (xxh3_64_hexdigest(raw).encode(), raw)

    assert decode(changed({"specialised": "exactly"})).median_us == 3.0
    assert decode(changed({}, drop="epilogue")).problem.epilogue == ""


@pytest.mark.parametrize(
    ("timing", "named"),
    [
        ({"median_us": 0.0}, "median_us"),
        ({"median_us": None}, "median_us"),
        ({"median_us": "fast"}, "median_us"),
        ({"median_us": 10**400}, "median_us"),
        ({"verified": 1}, "verified"),
        ({"verified": None}, "verified"),
    ],
)
def test_a_timing_that_cannot_be_right_is_refused(timing: dict[str, object], named: str) -> None:
    forged = msgspec.structs.replace(
        invented_timing(PROBLEM, CONFIG, 3.0), timing={"median_us": 3.0, "verified": True, **timing}
    )
    with pytest.raises(CorruptEntry, match=named):
        decode(encode(forged))


@pytest.mark.parametrize("data", [b"", b"{", b"7", b'{"checksum": "xxh3:0", "measurement": {}}', b"\xff", b"[" * 10**5])
def test_bytes_that_are_no_timing_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode(data)


def test_devices_are_kept_apart_by_everything_that_can_change_speed(store: DiskStore, timings: Timings) -> None:
    others = [  # text twice, numbers doubled
        msgspec.structs.replace(INVENTED_GPU, **{name: value * 2})
        for name, value in msgspec.structs.asdict(INVENTED_GPU).items()
    ]
    devices = [INVENTED_GPU, *others]
    assert len({device.digest() for device in devices}) == len(devices)
    timings.add(invented_timing(PROBLEM, CONFIG, 1.0 + number, device=device) for number, device in enumerate(devices))
    for number, device in enumerate(devices):
        (one,) = timings.of_device(device.digest())
        assert (one.device, one.median_us) == (device, 1.0 + number)
    assert {device.fingerprint for device in timings.devices()} == {device.digest() for device in devices}


def test_a_store_without_timings_has_no_folder_for_them(store: DiskStore, timings: Timings) -> None:
    fill(store, 2)
    assert not timings.exist()
    assert not store.layout.timings.exists()
    assert list(timings) == []
    assert list(integrity.check(store)) == []


def test_a_file_at_the_path_of_the_folder_does_no_harm(cache: Cache) -> None:
    cache.layout.timings.write_text("no folder")
    kernel = cache.get_or_compile(PROBLEM)
    assert kernel.config_from == "cost model"
    timing = Timing(INVENTED_GPU, 1.0, 1.0, 1.0, 1, 1.0, 0.0, True)
    assert cache.keep_timing(kernel, timing) == Failure("the store refused it: File exists")
    assert list(cache.timings) == []
    assert [(finding.path, finding.cause) for finding in cache.admin.verify()] == [("timings", "it is not a folder")]
    assert cache.search("sm_90")[0]["key"] == kernel.key


def test_with_caching_off_no_timing_is_stored_and_a_failure_is_returned() -> None:
    with open_cache(enable_caching=False) as cache:
        kernel = cache.get_or_compile(PROBLEM)
        timing = Timing(INVENTED_GPU, 1.0, 1.0, 1.0, 1, 1.0, 0.0, True)
        assert cache.keep_timing(kernel, timing) == Failure("caching is switched off")


def _add_many(root: Path, first: int, count: int) -> None:
    kept = Timings(open_store(root), durable=False)
    for number in range(first, first + count):
        kept.add([invented_timing(PROBLEM, CONFIG, float(number))])
    kept.close()


@pytest.mark.parametrize("processes", [3, pytest.param(8, marks=pytest.mark.soak)])
def test_processes_with_60_timings_each_lose_nothing(store: DiskStore, processes: int) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_add_many, args=(store.layout.root, 1 + 60 * number, 60)) for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * processes
    assert medians(store.layout) == list(range(1, 60 * processes + 1))


def test_a_forked_child_and_its_parent_can_both_add(store: DiskStore, timings: Timings) -> None:
    timings.add([invented_timing(PROBLEM, CONFIG, 1.0)])
    child = os.fork()
    if child == 0:
        timings.add([invented_timing(PROBLEM, CONFIG, 2.0)])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    timings.add([invented_timing(PROBLEM, CONFIG, 3.0)])
    assert medians(store.layout) == [1.0, 2.0, 3.0]


def test_timings_outlive_the_kernels_they_are_of(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", durability="fast") as cache:
        keys = fill(DiskStore(cache.layout, durable=False), 3)
        cache.timings.add(invented_timing(PROBLEM, CONFIG, 5.0, key=key) for key in keys)
        cache.admin.clean(Limits(everything=True))
        assert list(cache.records()) == []
        assert {one.key for one in cache.timings} == set(keys)


# ---- The index ----


def test_the_mirror_lists_a_kernels_timings_newest_first(store: DiskStore, timings: Timings) -> None:
    key, index = make_entry()[0], Index(store)
    index.sync()
    more: dict[str, Any] = {"tflops": 70.5, "reference_median_us": 9.0, "speed_ratio": 0.9, "max_rel_error": 1e-3}
    timings.add(
        [
            invented_timing(PROBLEM, CONFIG, 10.0, key=key, measured_at=100.0, **more),
            invented_timing(PROBLEM, CONFIG, 11.0, key=key, measured_at=300.0, device=OTHER_GPU, verified=False),
            invented_timing(PROBLEM, CONFIG, 12.0, measured_at=200.0),
        ]
    )
    synced = index.sync()
    assert (synced.timings, synced.changed) == (3, True)
    with index.read() as connection:
        newest, oldest = summaries.timings(connection, key)
    assert oldest == {
        "key": key, "device": "Invented GPU", "arch": "sm_90", "driver": "13.0", "m": 16, "n": 4096, "k": 7168,
        "batch": 1, "median_us": 10.0, "p10_us": 10.0, "p90_us": 10.0, **more, "verified": True, "measured_at": 100.0,
    }  # fmt: skip
    assert (newest["median_us"], newest["verified"], newest["driver"]) == (11.0, False, "13.1")
    assert newest["speed_ratio"] is newest["reference_median_us"] is newest["max_rel_error"] is None
    assert not index.sync().changed
    for path in store.layout.timings.iterdir():
        path.unlink()
    assert index.sync().timings == 3
    with index.read() as connection:
        assert summaries.timings(connection, key) == []


def test_hostile_timings_do_not_stop_the_mirror(store: DiskStore, timings: Timings) -> None:
    hostile = msgspec.structs.replace(INVENTED_GPU, name="<b>'; DROP TABLE kernels; --")
    timings.add([invented_timing(PROBLEM, CONFIG, 5.0, device=hostile, samples=[1], sizes={})])
    sound = invented_timing(PROBLEM, CONFIG, 6.0, device=hostile)
    forged = [
        msgspec.structs.replace(sound, device=msgspec.structs.replace(hostile, name="\x1b[31m")),
        msgspec.structs.replace(sound, device=msgspec.structs.replace(hostile, sms=10**30)),
        msgspec.structs.replace(sound, key="1 2"),
        msgspec.structs.replace(sound, config_from="x" * 10**5),
        msgspec.structs.replace(sound, timing={**sound.timing, "tflops": 10**400}),
        msgspec.structs.replace(sound, timing={**sound.timing, "p10_us": -1}),
    ]
    for one in forged:
        with pytest.raises(CorruptEntry, match="is invalid"):
            timings.add([one])
    timings._file(hostile.digest()).append(
        NewResult(f"forged-{number}", 1e9, 0.0, encode(one)) for number, one in enumerate(forged)
    )
    index = Index(store)
    assert (index.sync().timings, index.sync().skipped) == (1, len(forged))
    with index.read() as connection:
        (row,) = summaries.timings(connection, "ab" * 32)
    assert (row["device"], row["tflops"]) == (hostile.name, None)
    findings = list(integrity.check(store))
    assert [finding.kind for finding in findings] == [FindingKind.CORRUPT_TIMINGS]
    assert integrity.repair(store, Journal(store.layout.journal, 3600.0), findings) == findings
    assert index.sync().skipped == 0

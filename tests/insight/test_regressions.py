"""What another toolchain made of the same kernels. Every timing here is invented: input, no measurement."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cache_engine.errors import UsageError
from cache_engine.insight.toolchains import CODE, COMPILE, METRICS, REGISTERS, SPILLS, TIME, Regressions, regressions
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.measurement import Measurement
from cache_engine.store.codec import encode_blob, encode_record
from cache_engine.store.disk import DiskStore
from tests.cli.test_cli import run
from tests.helpers import INVENTED_GPU, invented_timing, make_entry, make_store, record_file


def _record(seed: int) -> Record:
    key, artifact, describe = make_entry(seed)
    return describe(encode_blob(key, artifact, compress=True)[1])


OLD = [_record(seed) for seed in range(6)]


def _by(record: Record, version: str = "13.6", **components: str) -> Record:
    """The same kernel by another toolchain: another key, and the components that name it."""
    changed = {"compiler_version": version, "compiler_build": "ab" * 20, **components}
    labelled = tuple((label, changed.get(label, value)) for label, value in record.components)
    return msgspec.structs.replace(
        record, key=f"{version.replace('.', ''):0<4}" + record.key[4:], components=labelled, compiler_version=version
    )


def _resources(record: Record, **more: int) -> Record:
    return msgspec.structs.replace(record, resources=msgspec.structs.replace(record.resources, **more))


def _compared(
    new: list[Record], timings: list[Measurement] | None = None, threshold: float = 0.1, old: list[Record] = OLD
) -> Regressions:
    return regressions([*old, *new], timings or [], "nvrtc 13.5", "nvrtc 13.6", threshold)


def test_the_same_kernels_are_compared_and_nothing_is_worse() -> None:
    found = _compared([_by(record) for record in OLD[:4]])
    assert (found.kernels, found.worse) == (4, ())
    assert (found.from_toolchain[:10], found.to_toolchain[:10]) == ("nvrtc 13.5", "nvrtc 13.6")
    assert [one.metric for one in found.summaries] == list(METRICS)
    assert {one.metric: one.compared for one in found.summaries} == {
        REGISTERS: 4, SPILLS: 4, CODE: 4, COMPILE: 4, TIME: 0,
    }  # fmt: skip
    assert {one.median_ratio for one in found.summaries} == {1.0, None}


@pytest.mark.parametrize("label", ["template", "flags"])
def test_kernels_of_another_source_or_with_other_flags_are_not_the_same(label: str) -> None:
    components = dict(OLD[0].components)
    assert label in components
    assert _compared([_by(OLD[0], **{label: "other"})]).kernels == 0


@pytest.mark.parametrize(
    ("worsen", "metric"),
    [
        (lambda record: _resources(record, registers=record.resources.registers * 2), REGISTERS),
        (lambda record: _resources(record, spill_bytes=8), SPILLS),
        (lambda record: _larger(record), CODE),
    ],
)
def test_one_worse_kernel_is_found(worsen: Callable[[Record], Record], metric: str) -> None:
    new = [_by(record) for record in OLD]
    found = _compared([worsen(new[0]), *new[1:]])
    (worse,) = found.worse
    assert (worse.metric, worse.from_key, worse.to_key) == (metric, OLD[0].key, new[0].key)
    assert {one.metric: one.worse for one in found.summaries if one.worse} == {metric: 1}
    better = regressions([*OLD, worsen(new[0]), *new[1:]], [], "nvrtc 13.6", "nvrtc 13.5", 0.1)
    assert better.worse == ()
    assert {one.metric: one.better for one in better.summaries if one.better} == {metric: 1}


def _larger(record: Record) -> Record:
    section = record.blob.sections[CUBIN]
    larger = msgspec.structs.replace(section, raw_bytes=section.raw_bytes * 2)
    return msgspec.structs.replace(
        record, blob=msgspec.structs.replace(record.blob, sections={**record.blob.sections, CUBIN: larger})
    )


def test_what_grows_by_no_more_than_the_threshold_is_not_worse() -> None:
    new = [_resources(_by(OLD[0]), registers=round(OLD[0].resources.registers * 1.25))]
    assert _compared(new, threshold=0.25).worse == ()
    assert len(_compared(new, threshold=0.2).worse) == 1


def test_compile_time_is_judged_over_all_kernels() -> None:
    new = [_by(record) for record in OLD]
    one_slow = [msgspec.structs.replace(new[0], compile_ms=new[0].compile_ms * 50), *new[1:]]
    assert _compared(one_slow).worse == ()
    slow = [msgspec.structs.replace(record, compile_ms=record.compile_ms * 1.5) for record in new]
    (worse,) = _compared(slow).worse
    assert (worse.metric, worse.from_key) == (COMPILE, "")
    assert worse.ratio == pytest.approx(1.5)


def _timed(record: Record, us: float, spread: float, driver: str = "13.0", at: float = 1e9) -> Measurement:
    problem = record.problem.on(record.arch)
    device = msgspec.structs.replace(INVENTED_GPU, driver=driver)
    return invented_timing(
        problem,
        record.config,
        us,
        key=record.key,
        device=device,
        measured_at=at,
        p10_us=us - spread,
        p90_us=us + spread,
    )


def test_a_time_is_worse_where_it_is_beyond_the_noise_of_both() -> None:
    new = _by(OLD[0])
    clear = [_timed(OLD[0], 100.0, 3.0), _timed(new, 130.0, 5.0, driver="13.1")]
    (worse,) = _compared([new], clear).worse
    assert (worse.metric, worse.before, worse.after) == (TIME, 100.0, 130.0)
    assert worse.where == f"{INVENTED_GPU.name}, m = {OLD[0].problem.m}, driver 13.0 → 13.1"
    noisy = [_timed(OLD[0], 100.0, 20.0), _timed(new, 130.0, 20.0)]
    assert _compared([new], noisy).worse == ()
    replaced = [*clear, _timed(new, 101.0, 1.0, at=2e9)]
    assert _compared([new], replaced).worse == (), "the latest timing counts"


def test_an_unverified_timing_or_one_of_another_gpu_says_nothing() -> None:
    new = _by(OLD[0])
    slow = _timed(new, 500.0, 1.0)
    elsewhere = msgspec.structs.replace(slow, device=msgspec.structs.replace(INVENTED_GPU, name="Another GPU"))
    wrong = msgspec.structs.replace(slow, timing={**slow.timing, "verified": False})
    for one in (elsewhere, wrong):
        found = _compared([new], [_timed(OLD[0], 100.0, 1.0), one])
        assert next(each for each in found.summaries if each.metric == TIME).compared == 0


def test_a_toolchain_is_named_by_version_or_build_and_must_be_one() -> None:
    new = [_by(record) for record in OLD]
    found = regressions([*OLD, *new], [], "nvrtc 13.5", "abab", 0.1)
    assert found.to_toolchain.startswith("nvrtc 13.6")
    for asked, reason in (("nvrtc 12", "no toolchain"), ("nvrtc", "several toolchains"), (" ", "toolchain")):
        with pytest.raises(UsageError, match=reason) as refused:
            regressions([*OLD, *new], [], asked, "nvrtc 13.6", 0.1)
        assert "nvrtc 13.5" in str(refused.value)
    with pytest.raises(UsageError, match="name two toolchains"):
        regressions([*OLD, *new], [], "nvrtc 13.6", "abab", 0.1)
    with pytest.raises(UsageError, match="the store is empty"):
        regressions([], [], "nvrtc 13.5", "nvrtc 13.6", 0.1)


def _stored(folder: Path, *records: Record) -> DiskStore:
    store = make_store(folder)
    for record in records:
        record_file(store, record.key).parent.mkdir(parents=True, exist_ok=True)  # type: ignore[arg-type]
        record_file(store, record.key).write_bytes(encode_record(record))  # type: ignore[arg-type]
    return store


def test_a_comparison_of_nothing_does_not_pass(tmp_path: Path) -> None:
    """As in CI, where one of the two toolchains compiled other kernels."""
    store = _stored(tmp_path / "store", OLD[0], _by(OLD[1]))
    done = run("timings", "--from", "nvrtc 13.5", "--to", "nvrtc 13.6", store=store.layout.root)
    assert (done.returncode, "Nothing was compared" in done.stdout) == (1, True)


def test_the_verb_ends_with_code_1_where_something_is_worse(tmp_path: Path) -> None:
    store = _stored(tmp_path / "store", *OLD, *map(_by, OLD[:2]), _resources(_by(OLD[2]), registers=255))
    asked = ("timings", "--from", "nvrtc 13.5", "--to", "nvrtc 13.6")
    done = run(*asked, "--json", store=store.layout.root)
    document = json.loads(done.stdout)
    assert (done.returncode, document["kernels"]) == (1, 3)
    (worse,) = document["worse"]
    assert (worse["metric"], worse["after"]) == (REGISTERS, 255)
    text = run(*asked, store=store.layout.root)
    assert text.returncode == 1
    assert OLD[2].name in text.stdout
    assert run(*asked, "--threshold", "9", store=store.layout.root).returncode == 0
    unknown = run("timings", "--from", "nvcc", "--to", "nvrtc 13.6", store=store.layout.root)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)

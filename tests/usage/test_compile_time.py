"""Predicting how long a compile takes."""

import math
import random
from dataclasses import replace
from itertools import repeat

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.store.codec import encode_blob
from cache_engine.usage.compile_time import (
    _MOST_FEATURES,
    MOST_RECORDS,
    PUBLISHED_S,
    Compile,
    CompileTimes,
    fitted,
    predicted_compile_seconds,
)
from tests.helpers import make_entry

_, _ARTIFACT, _DESCRIBE = make_entry(0)
_RECORD = _DESCRIBE(encode_blob(make_entry(0)[0], _ARTIFACT, compress=True)[1])
CONFIG = KernelConfig(64, 64, 32, 2, 2, 3)


def _kernel(compiler: str = "nvrtc", arch: str = "sm_90", config: KernelConfig = CONFIG, epilogue: str = "") -> Compile:
    problem = msgspec.structs.replace(RecordedProblem.of(GemmProblem(1, 64, 64)), epilogue=epilogue)
    return Compile("tensor_core", compiler, arch, problem, config)


def _record(kernel: Compile, seconds: float, number: int) -> Record:
    """A record of that compile; ``number`` makes its key."""
    return msgspec.structs.replace(
        _RECORD,
        key=f"{number * 0x9E3779B1 % 2**32:08x}{number:056x}",
        family=kernel.family,
        compiler=kernel.compiler,
        arch=kernel.arch,
        problem=kernel.problem,
        config=kernel.config,
        compile_ms=seconds * 1e3,
    )


@pytest.mark.parametrize("compiler", PUBLISHED_S)
def test_without_records_the_published_figure_is_predicted(compiler: str) -> None:
    each, times = predicted_compile_seconds([_kernel(compiler)], [])
    assert each == [PUBLISHED_S[compiler]]
    assert (times.records, times.error) == (0, None)
    assert "docs/performance.md" in times.in_words


def test_a_store_on_a_slower_machine_predicts_slower_compiles_by_every_compiler() -> None:
    times = fitted(_record(_kernel(), 3 * PUBLISHED_S["nvrtc"], number) for number in range(40))
    assert times.seconds(_kernel()) == pytest.approx(3 * PUBLISHED_S["nvrtc"], rel=1e-6)
    assert 1.2 < times.seconds(_kernel("nvcc", "sm_80")) / PUBLISHED_S["nvcc"] < 3
    assert times.records == 40


def _true_seconds(kernel: Compile) -> float:
    """A machine whose compiles take longer with larger tiles, more so with an epilogue, and twice for one target."""
    area = kernel.config.block_m * kernel.config.block_n / 1024
    growth = 0.9 if kernel.problem.epilogue else 0.6
    return 0.05 * math.pow(area, growth) * (2 if kernel.arch == "sm_100" else 1)


def _various(rng: random.Random, count: int) -> list[Compile]:
    sizes = (32, 64, 128, 256)
    return [
        _kernel(
            arch=rng.choice(("sm_80", "sm_90", "sm_100")),
            config=replace(CONFIG, block_m=rng.choice(sizes), block_n=rng.choice(sizes)),
            epilogue=rng.choice(("", "bias")),
        )
        for _ in range(count)
    ]


def test_what_makes_compiles_longer_is_learned_from_the_records() -> None:
    rng = random.Random(4)
    records = [_record(kernel, _true_seconds(kernel), number) for number, kernel in enumerate(_various(rng, 200))]
    times = fitted(records)
    for kernel in _various(rng, 20):
        assert times.seconds(kernel) == pytest.approx(_true_seconds(kernel), rel=0.03)
    assert times.error is not None
    assert times.error < 0.02


def test_that_slices_of_k_are_added_up_takes_time_that_is_learned() -> None:
    whole, split = _kernel(), _kernel(config=replace(CONFIG, split_k=4))
    records = [
        _record(kernel, seconds, number) for number, (kernel, seconds) in enumerate(((whole, 0.2), (split, 0.6)) * 100)
    ]
    times = fitted(records)
    assert times.seconds(whole) == pytest.approx(0.2, rel=0.05)
    assert times.seconds(split) == pytest.approx(0.6, rel=0.05)


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.5])
def test_the_error_is_that_of_predicting_kernels_not_seen(spread: float) -> None:
    """The median of an absolute relative error, of compiles whose logarithm varies by chance by so much."""
    rng = random.Random(6)

    def seconds(kernel: Compile) -> float:
        return _true_seconds(kernel) * math.exp(rng.gauss(0, spread))

    times = fitted(_record(kernel, seconds(kernel), number) for number, kernel in enumerate(_various(rng, 600)))
    unseen = sorted(abs(times.seconds(kernel) / seconds(kernel) - 1) for kernel in _various(rng, 2000))
    assert times.error == pytest.approx(unseen[1000], abs=0.02, rel=0.15)


def test_a_model_that_knows_its_own_records_by_heart_has_an_error_all_the_same() -> None:
    """Each is for a target of its own, so what was learned of it says nothing about the others."""
    records = [_record(_kernel(arch=f"sm_{n}"), 0.1 * 4 ** (n % 2), n) for n in range(40)]
    times = fitted(records)
    assert times.seconds(_kernel(arch="sm_0")) < times.seconds(_kernel(arch="sm_1")) / 2
    assert times.error is not None
    assert times.error > 0.4


def test_with_few_records_no_error_is_claimed() -> None:
    few = [_record(_kernel(), 0.2, number) for number in range(9)]
    assert fitted(few).error is None
    assert fitted([*few, _record(_kernel(), 0.2, 9)]).error is not None
    assert "error" not in fitted(few).in_words
    assert fitted(few[:1]).in_words == "from 1 compile in this store"


def test_predictions_add_up_to_what_the_records_took() -> None:
    rng = random.Random(5)
    kernels = _various(rng, 300)
    records = [
        _record(kernel, _true_seconds(kernel) * math.exp(rng.gauss(0, 0.7)), n) for n, kernel in enumerate(kernels)
    ]
    each, _ = predicted_compile_seconds(kernels, records)
    assert sum(each) == pytest.approx(sum(record.compile_ms for record in records) / 1e3)


def test_a_compile_that_took_a_night_changes_nothing() -> None:
    records = [_record(kernel, _true_seconds(kernel), n) for n, kernel in enumerate(_various(random.Random(1), 50))]
    odd = [_record(_kernel(), 30_000, 50), _record(_kernel(), 0.0, 51), _record(_kernel(), 1e9, 52)]
    assert fitted([*records, *odd]) == fitted(records)


def test_no_more_records_are_read_than_said() -> None:
    endless = repeat(_record(_kernel(), 0.3, 7))
    assert fitted(endless).records == MOST_RECORDS


def test_records_of_very_many_families_are_fitted_with_as_many_features_as_there_are_at_most() -> None:
    """Records of a pack may name any: fitting takes time as the cube of the number of features."""
    kernels = [replace(_kernel(), family=f"family {number}") for number in range(120)]
    times = fitted(_record(kernel, 0.161, number) for number, kernel in enumerate(kernels))
    assert len(times._weights) <= _MOST_FEATURES
    assert times.seconds(_kernel()) == pytest.approx(0.161, rel=0.01)
    epilogue = "+".join(map(str, range(1000)))
    assert fitted([_record(_kernel(epilogue=epilogue), 0.161, 1)]).records == 0


def test_a_compiler_of_a_later_program_is_no_error() -> None:
    times = fitted([_record(_kernel("hipcc", "gfx942"), 0.4, number) for number in range(20)])
    assert times.seconds(_kernel("hipcc", "gfx942")) == pytest.approx(0.4, rel=0.05)
    assert CompileTimes(0, None).seconds(_kernel("hipcc")) == PUBLISHED_S["nvrtc"]


@given(
    st.lists(
        st.tuples(st.sampled_from(("", "bias", "gelu+gelu", "+")), st.integers(1, 65_536), st.floats(0, 1e12)),
        max_size=30,
    )
)
def test_whatever_the_records_say_the_prediction_is_a_time(rows: list[tuple[str, int, float]]) -> None:
    """Records are files: each number may be any that the format allows."""
    records = [
        _record(_kernel(epilogue=epilogue, config=replace(CONFIG, block_m=edge, stages=edge)), ms / 1e3, number)
        for number, (epilogue, edge, ms) in enumerate(rows)
    ]
    assert 1e-4 < fitted(records).seconds(_kernel()) < 1e4

"""Calibrating finds the factors that made the data, by rows that it did not see, and refuses what cannot be right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from cache_engine.errors import InvalidHardware, UsageError
from cache_engine.evaluator import calibration
from cache_engine.evaluator.calibration import FITS, calibrate, timings_of
from cache_engine.evaluator.chips import FACTORS, GPUS, Calibration, Gpu, load_gpu
from cache_engine.evaluator.gpu import MODEL_VERSION, latencies_us, parameters_of, predict
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.validation import Measurements, validate
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import GemmProblem
from tests.helpers import INVENTED_GPU, invented_timing

MADE = {"launch": 1.5, "compute": 1.25, "memory": 0.8, "steps": 1.3, "epilogue": 0.9}


def made(
    gpu: Gpu, factors: Mapping[str, float] = MappingProxyType({}), count: int = 400, noise: float = 0.02
) -> Measurements:
    """Not measured: the model with known factors, and noise."""
    generator = np.random.default_rng(3)
    m = np.floor(2 ** generator.uniform(0, 13, count))
    n, k = (64 * np.floor(2 ** generator.uniform(1, 7, count)) for _ in range(2))
    about = Calibration(
        "x", "x", MODEL_VERSION, parameters_of(gpu)[0], 1, **(dict.fromkeys(FACTORS, 1.0) | dict(factors)),
        low=1, high=1, error_before=0, error_after=0,
    )  # fmt: skip
    times = latencies_us(parameters_of(gpu)[1], replace(gpu, calibration=about), m, n, k)
    return Measurements(gpu, m, n, k, times * np.exp(noise * generator.standard_normal(count)))


@pytest.mark.parametrize("name", ["H100", "L40S"])
def test_the_factors_that_made_the_data_are_found(name: str) -> None:
    fits = []
    found = calibrate(made(GPUS[name], MADE), "made up", fitted=lambda: fits.append(1))
    about = found.gpu.calibration
    assert about is not None
    assert len(fits) == FITS
    assert found.is_better
    assert about.error_after < 0.03 < about.error_before
    assert {factor: getattr(about, factor) for factor in ("launch", "compute", "memory")} == pytest.approx(
        {factor: MADE[factor] for factor in ("launch", "compute", "memory")}, rel=0.1
    )
    assert 0.6 < found.inside < 0.76, "noise is the same in and out of the fit"
    assert about.base == (name if name == "H100" else "all")
    again = made(GPUS[name], MADE, 300)
    (whole, *_) = validate(replace(again, gpu=found.gpu))
    assert whole.calibrated_on == "made up"
    assert whole.model.mape < 0.03
    assert 0.6 < whole.inside < 0.76


def test_data_that_the_model_already_fits_is_not_made_better() -> None:
    found = calibrate(made(GPUS["H100"], count=60, noise=0.0), "exact")
    assert found.gpu.calibration is not None
    assert (found.gpu.calibration.error_before, found.is_better) == (0, False)


def test_a_calibrated_gpu_is_a_file_whose_predictions_name_it(tmp_path: Path) -> None:
    found = calibrate(made(GPUS["H100"], MADE), "made up", "Mine").gpu
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(asdict(found)))
    loaded = load_gpu(path)
    assert loaded == found
    assert loaded.calibration is not None
    prediction = predict(EvaluationProblem(1, 4096, 4096), loaded)
    assert (prediction.calibration, prediction.calibrated_on) == (loaded.calibration.id, "H100")
    assert prediction.low_us == pytest.approx(prediction.latency_us * loaded.calibration.low)
    assert prediction.latency_us != predict(EvaluationProblem(1, 4096, 4096), GPUS["H100"]).latency_us
    for change, named in (
        ({"launch": 0}, "calibration.launch is 0"),
        ({"rows": "x"}, "calibration.rows"),
        ({"low": 2.0, "high": 1.0}, "calibration.low is 2, above"),
        ({"more": 1}, "unknown field calibration.more"),
        ({"id": ""}, "calibration.id"),
    ):
        changed = {**asdict(found), "calibration": {**asdict(loaded.calibration), **change}}
        path.write_text(json.dumps(changed))
        with pytest.raises(InvalidHardware, match=named):
            load_gpu(path)
    older = replace(found, calibration=replace(loaded.calibration, model="1.0.0"))
    with pytest.raises(InvalidHardware, match=r"GPU model 1\.0\.0, and this is .* calibrate again"):
        predict(EvaluationProblem(1, 4096, 4096), older)


def test_too_few_rows_and_impossible_ones_are_refused_by_line() -> None:
    data = made(GPUS["H100"], count=60)
    with pytest.raises(UsageError, match=r"few\.csv has 19 rows .* takes 20 rows"):
        calibrate(data.only(slice(19)), "few.csv")
    narrow = replace(data, n=np.full_like(data.n, 4096), k=np.full_like(data.k, 4096))
    with pytest.raises(UsageError, match=r"with 1 pairs of N and K; .* 5 pairs"):
        calibrate(narrow, "one.csv")
    for us, said in ((1e-3, "takes more than"), (1e9, "is predicted")):
        wrong = data.latency_us.copy()
        wrong[7] = us
        with pytest.raises(UsageError, match=rf"odd\.csv, line 9: latency_us is .*{said}.*check the unit"):
            calibrate(replace(data, latency_us=wrong), "odd.csv")


def test_what_an_l2_gives_is_not_impossible() -> None:
    """Five times as fast as DRAM, which an L40S is when its weights stay in L2."""
    data = made(GPUS["L40S"], count=60)
    small = data.only(slice(None))
    fast = replace(small, m=np.ones(60), latency_us=2 * small.n * small.k / 864e9 / 5 * 1e6 + 1)
    assert calibrate(fast, "fast.csv").gpu.calibration is not None


def test_a_stores_timings_are_the_fastest_of_each_problem() -> None:
    config = choose(GemmProblem(16, 4096, 4096, arch="sm_90"))[1]
    problem = GemmProblem(16, 4096, 4096, arch="sm_90")
    slow, fast = (invented_timing(problem, config, us) for us in (99.0, 70.0))
    library = invented_timing(replace(problem, m=32), config, 80.0, reference_median_us=60.0)
    wrong = invented_timing(replace(problem, m=32), config, 1.0, verified=False)
    strange = invented_timing(replace(problem, batch=2), config, 1.0)
    measured, device = timings_of([slow, fast, library, wrong, strange], GPUS["H100"])
    assert device == INVENTED_GPU.name
    assert list(zip(measured.m.tolist(), measured.latency_us.tolist(), strict=True)) == [(16.0, 70.0), (32.0, 60.0)]
    with pytest.raises(UsageError, match="no verified timings"):
        timings_of([wrong, strange], None)
    with pytest.raises(UsageError, match="does not know; describe it with --chip"):
        timings_of([slow], None)


def test_each_pair_is_predicted_by_a_fit_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(GPUS["H100"], MADE, 60)
    whole = set(zip(data.n.tolist(), data.k.tolist(), strict=True))
    left_out: list[set[tuple[float, float]]] = []
    fit = calibration._fitted

    def noting(some: Measurements) -> dict[str, float]:
        left_out.append(whole - set(zip(some.n.tolist(), some.k.tolist(), strict=True)))
        return fit(some)

    monkeypatch.setattr(calibration, "_fitted", noting)
    calibrate(data, "made up")
    assert len(left_out) == FITS
    assert left_out[-1] == set(), "the last is of all"
    assert set().union(*left_out) == whole
    assert sum(map(len, left_out)) == len(whole), "each is left out once"

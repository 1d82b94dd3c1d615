"""Fitting the GPU model finds what made the data, and never sees what is held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import fit_gpu
from benchmarks.__main__ import commands
from cache_engine.evaluator import calibration, gpu
from cache_engine.evaluator.chips import GPUS, Gpu
from cache_engine.evaluator.gpu import ALL, fitted, latencies_us
from cache_engine.evaluator.validation import Measurements, is_kept_out


def test_the_parameters_say_what_they_were_fitted_on() -> None:
    file = json.loads(gpu.PARAMETERS_FILE.read_text())
    assert "aiconfigurator" in file["source"]
    assert "Apache-2.0" in file["source"]
    assert set(file["parameters"]) == {"A100", "H100", "H200", "B200", ALL}
    for name, count in file["measurements"].items():
        assert 0.3 < file["kept_out"][name] / count < 0.5
    for values in fitted().values():
        for name, (low, high, _) in fit_gpu._BOUNDS.items():
            assert low <= getattr(values, name) <= high


def made_up(count: int, parameters: gpu.GpuParameters, chip: Gpu) -> Measurements:
    """Not measured: what the model itself says, to see whether fitting finds it again."""
    generator = np.random.default_rng(7)
    m, n, k = (np.floor(2 ** generator.uniform(0, 14, count)) for _ in range(3))
    return Measurements(chip, m, n, k, latencies_us(parameters, chip, m, n, k))


def test_fitting_recovers_the_parameters_of_synthetic_latencies() -> None:
    chip, parameters = GPUS["H100"], fitted()["A100"]
    data = made_up(700, parameters, chip)
    found = fit_gpu.fit([data], 1)
    kept_out = data.only(data.kept_out())
    error = latencies_us(found, chip, kept_out.m, kept_out.n, kept_out.k) / kept_out.latency_us - 1
    assert float(np.abs(error).mean()) < 0.02


def test_held_out_pairs_are_two_in_five_and_in_no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    share = np.mean([is_kept_out(n, k) for n in range(1, 100) for k in range(1, 100)])
    assert 0.37 < share < 0.43
    chip = GPUS["H100"]
    data = made_up(300, fitted()["H100"], chip)
    seen: set[tuple[float, float]] = set()

    def noting(parameters: Any, chip: Gpu, m: Any, n: Any, k: Any) -> Any:
        seen.update(zip(n.tolist(), k.tolist(), strict=True))
        return latencies_us(parameters, chip, m, n, k)

    monkeypatch.setattr(fit_gpu, "latencies_us", noting)
    monkeypatch.setattr(calibration, "_ROUNDS", 1)
    fit_gpu.fit([data], 1)
    assert seen
    assert not any(is_kept_out(*pair) for pair in seen)


def test_a_fit_is_written_to_the_working_directory_and_not_into_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "measured.csv"
    rows = [f"H100,{m},512,512,{10 + m / 100}" for m in range(1, 300)]
    data.write_text("arch,M,N,K,latency_us\n" + "\n".join(rows) + "\n")
    installed = gpu.PARAMETERS_FILE.read_bytes()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibration, "_ROUNDS", 1)
    done = CliRunner().invoke(commands, ["fit", str(data), "--source", "a test"])
    assert done.exit_code == 0, done.output
    assert gpu.PARAMETERS_FILE.read_bytes() == installed
    written = json.loads((tmp_path / "gpu_parameters.json").read_text())
    assert (written["source"], written["measurements"]) == ("a test", {"H100": 299})

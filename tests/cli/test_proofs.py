"""``doctor``, ``show`` and ``compile`` show the state of a family that a GPU must prove."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from cache_engine.batch import gpu_check
from cache_engine.batch.gpu_check import GpuSpeed
from cache_engine.cache.cache import open_cache
from cache_engine.cache.proving.watchdog import Verdict
from cache_engine.cli import doctor
from cache_engine.evaluator.validation import read_measurements
from cache_engine.gpu.probe import local_arch
from cache_engine.model.artifact import Record
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.proof import PROVED, REFUSED, Proof
from cache_engine.store.layout import StoreLayout
from cache_engine.store.proofs import write_proof
from tests.cli.conftest import Examine
from tests.cli.test_cli import run

H100 = DeviceFingerprint("NVIDIA H100", "sm_90", 132, 2**36, 2**25, 1_980_000, "13.0")


def _compiled(folder: Path) -> Record:
    with open_cache(folder, durability="fast") as cache:
        return cache.get_or_compile(GemmProblem(40, 72, 96, arch="sm_90a")).record


def _prove(folder: Path, record: Record, state: Literal["proved", "refused"], at: float) -> None:
    toolchain = f"{record.compiler} {record.compiler_version}"
    proof = Proof(family="hopper", state=state, device=H100, toolchain=toolchain, at=at, cases=22)
    write_proof(StoreLayout(folder), CacheKey(f"{int(at):064x}"), proof, durable=False)


def test_a_kernel_and_the_doctor_show_the_state(
    tmp_path: Path, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    record = _compiled(store)

    def checked() -> list[tuple[str, str]]:
        found = json.loads(examine("--json", store=store).stdout)["checks"]
        return [(check["status"], check["detail"]) for check in found if check["name"] == "hopper"]

    assert "unproved: no GPU has run its canaries" in run("show", record.key, store=store).stdout
    assert checked() == []
    monkeypatch.setattr(doctor, "gpu", lambda: H100)
    monkeypatch.setattr(doctor, "_device_memory", lambda: doctor.Check("device memory", doctor.OK, ""))
    assert checked() == [("note", "not proved on NVIDIA H100 yet; matmul proves it (prove = behind)")]
    _prove(store, record, PROVED, 1.0)
    toolchain = f"{record.compiler} {record.compiler_version}"
    assert checked() == [("ok", f"proved on NVIDIA H100 by 22 canaries, {toolchain}")]
    assert "proved on NVIDIA H100 by 22 canaries" in run("show", record.key, store=store).stdout
    _prove(store, record, REFUSED, 2.0)
    ((status, detail),) = checked()
    assert (status, "refused on NVIDIA H100" in detail) == ("note", True)


def test_compiling_without_a_gpu_says_that_the_family_is_unproved(tmp_path: Path) -> None:
    if local_arch() is not None:
        pytest.skip("this machine has a GPU")
    line = "hopper is unproved on this machine"
    assert line in run("compile", 40, 72, 96, "--arch", "sm_90a", store=tmp_path).stdout
    assert line not in run("compile", 40, 72, 96, "--arch", "sm_80", store=tmp_path).stdout
    done = run("doctor", "--gpu", store=tmp_path)
    assert done.returncode == 3
    assert "needs an NVIDIA GPU" in done.stderr


def test_the_check_of_a_gpu_fails_with_what_is_wrong(
    tmp_path: Path, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [("simt", Verdict(20)), ("CuPy", Verdict(1))]
    monkeypatch.setattr(gpu_check, "check_gpu", lambda cache, until: iter(found))
    monkeypatch.setattr(
        gpu_check, "speeds", lambda *_: iter([GpuSpeed("M", "o", 16, 64, 128, "simt", 9.5, reason="no clock")])
    )
    assert "20 cases right on the GPU" in examine("--gpu", store=tmp_path).stdout
    refused = Verdict(3, "it is wrong", case="a case", seed=34, command="gemm-cache time")
    found += [("hopper", refused), ("x", Verdict(undecided="lost"))]
    checks = {
        one["name"]: one for one in json.loads(examine("--gpu", "--json", store=tmp_path, code=1).stdout)["checks"]
    }
    assert checks["GPU: hopper"]["detail"] == "refused: it is wrong (a case, seed 34); again: gemm-cache time"
    assert checks["GPU: simt"]["status"] == "ok"
    assert checks["GPU: x"]["status"] == "problem"


def test_the_report_of_a_gpu_is_written_to_send_and_to_calibrate(
    tmp_path: Path, place: Path, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = GpuSpeed("<Model>", "qkv", 16, 64, 128, "hopper", 9.5)
    timed = [speed, msgspec.structs.replace(speed, m=4096, tflops=3.25, reference_tflops=6.5, latency_us=2.5)]
    monkeypatch.setattr(gpu_check, "check_gpu", lambda cache, until: iter([("simt", Verdict(20))]))
    monkeypatch.setattr(gpu_check, "speeds", lambda *_: iter(timed))
    monkeypatch.setattr(doctor, "gpu", lambda: H100)
    monkeypatch.setattr(doctor, "_device_memory", lambda: doctor.Check("device memory", doctor.OK, ""))
    files = [tmp_path / name for name in ("gpu.json", "gpu.html", "gpu.csv")]
    options = [option for file in files for option in ("--output", file)]
    shown = examine("--gpu", *options, store=place).stdout
    assert "not measured" in shown
    assert "gemm-cache calibrate gpu.csv" in shown
    document = json.loads(files[0].read_text())
    assert document == json.loads(examine("--gpu", "--json", store=place).stdout)
    assert [(one["m"], one["tflops"]) for one in document["speeds"]] == [(16, None), (4096, 3.25)]
    html = files[1].read_text()
    assert "<td>&lt;Model&gt;</td>" in html
    assert "<Model>" not in html
    assert "not measured" in html
    (measured,) = read_measurements(files[2])
    assert (measured.gpu.name, measured.m.tolist(), measured.latency_us.tolist()) == ("H100", [4096.0], [2.5])
    timed[1] = msgspec.structs.replace(speed, reason="its largest relative error is 0.5", is_wrong=True)
    assert "hopper 16x64x128 is wrong" in examine("--gpu", store=place, code=1).stdout
    assert "goes with --gpu" in run("doctor", "--output", files[0], store=place).stderr
    assert "does not exist" in run("doctor", "--gpu", "--output", tmp_path / "no" / "gpu.csv", store=place).stderr
    assert "must end with" in run("doctor", "--gpu", "--output", "gpu.txt", store=place).stderr


def test_a_report_that_cannot_be_written_is_printed(
    tmp_path: Path, place: Path, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "check_gpu", lambda cache, until: iter([("simt", Verdict(20))]))
    monkeypatch.setattr(gpu_check, "speeds", lambda *_: iter([GpuSpeed("M", "o", 16, 64, 128, "simt", 9.5)]))
    (tmp_path / "dir.csv").mkdir()
    for file in (tmp_path / "dir.csv", tmp_path / "none" / "gpu.csv"):
        done = examine("--gpu", "--output", file, store=place, code=1)
        assert "is a directory" in str(done.exception) or "folder that does not exist" in str(done.exception)
        assert "right on the GPU" not in done.stdout, "nothing is checked first"
    old, link = tmp_path / "old.json", tmp_path / "link.html"
    old.write_text("old")
    link.symlink_to("/dev/full")

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        done = examine("--gpu", "--output", old, "--output", link, store=place, code=1)
    assert "20 cases right on the GPU" in done.stdout
    assert "No space left" in str(done.exception)
    assert old.read_text() == "old"
    done = examine("--gpu", "--output", link, "--output", old, store=place, code=1)
    assert "is a device" in str(done.exception)
    assert json.loads(old.read_text())["ok"], "the other file is written"

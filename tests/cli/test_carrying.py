"""A pack for a model: what it has, and whether it would be used elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.compilers import COMPILERS, nvrtc
from cache_engine.insight.packs import preflight
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.settings import Settings
from cache_engine.store.pack import Pack
from tests.cli.test_cli import document, run
from tests.trust.keys import Builder, signers_file

FOR = ("--arch", "sm_90", "--m", "128")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A model with one shape, whose kernel for m = 128 the compiled store has for sm_90 and sm_80."""
    path = tmp_path / "table.csv"
    path.write_text("n,k\n256,192\n")
    return path


def test_a_pack_for_a_model_has_what_serves_it_and_nothing_else(
    compiled_store: Path, table: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "model.gemmpack"
    found = document("pack", "export", pack, "--for", table, *FOR, store=compiled_store)
    assert (found["entries"], found["missing"]) == (1, [])
    (key,) = (one["key"] for one in document("warm", table, *FOR, "--dry-run", store=compiled_store)["needed"])
    assert [row.key for row in Pack(pack).rows()] == [key]
    ready = document("pack", "check", pack, "--for", table, *FOR, store=tmp_path / "none")
    assert (ready["used"], ready["needed"], ready["found"], ready["targets"]) == (True, 1, 1, ["sm_90"])
    assert [(row["arch"], row["kernels"], row["differs"]) for row in ready["carried"]] == [("sm_90", 1, [])]
    assert not (tmp_path / "none").exists()  # it makes no store


def test_what_the_store_lacks_of_a_model_is_said(compiled_store: Path, table: Path, tmp_path: Path) -> None:
    pack = tmp_path / "model.gemmpack"
    table.write_text("n,k\n256,192\n512,64\n")
    found = document("pack", "export", pack, "--for", table, *FOR, store=compiled_store, code=1)
    assert (found["entries"], len(found["missing"])) == (1, 1)
    lacking = document("pack", "check", pack, "--for", table, *FOR, store=tmp_path / "none", code=1)
    assert (lacking["used"], lacking["found"]) == (False, 1)
    assert lacking["reasons"] == ["it lacks 1 of the 2 kernels that the model needs"]
    table.write_text("n,k\n512,64\n")
    refused = run("pack", "export", tmp_path / "none.gemmpack", "--for", table, *FOR, store=compiled_store)
    assert (refused.returncode, "gemm-cache warm compiles them" in refused.stderr) == (2, True)
    assert not (tmp_path / "none.gemmpack").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--m", "16"), "name the model with --for"),
        (("--for", "no-such-model"), "no-such-model"),
        (("--for", "Llama-3.1-8B", "--dtype", "bf17"), "bf17"),
        (("--for", "Llama-3.1-8B", "--arch", "sm_1"), "sm_1"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    compiled_store: Path, tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    done = run("pack", "export", tmp_path / "a.gemmpack", *options, store=compiled_store)
    assert (done.returncode, why in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_preflight_names_a_target_that_is_not_there_and_who_did_not_sign(
    compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, builder = tmp_path / "kernels.gemmpack", Builder(tmp_path / "key")
    document("pack", "export", pack, store=compiled_store)
    found = document("pack", "check", pack, "--arch", "sm_100", "--arch", "sm_75", store=tmp_path / "none", code=1)
    assert found["reasons"] == ["it has no kernel for sm_100; it has sm_75, sm_80, sm_90"]
    assert document("pack", "check", pack, "--arch", "sm_80", store=tmp_path / "none")["used"]
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"builder@ci {builder.line}")))
    found = document("pack", "check", pack, "--arch", "sm_80", store=tmp_path / "none", code=1)
    assert found["reasons"] == ["4 of 4 are refused: not signed: the kernel has no signature"]
    document("pack", "export", pack, "--sign", builder.file, "--force", store=compiled_store)
    found = document("pack", "check", pack, "--arch", "sm_80", store=tmp_path / "none")
    assert (found["used"], found["signed"]) == (True, "signed by builder@ci")
    monkeypatch.setenv("GEMM_CACHE_ENABLE_CACHING", "0")
    assert "caching is switched off" in run("pack", "check", pack, "--arch", "sm_80", store=tmp_path / "none").stdout


def test_preflight_refuses_what_is_no_pack(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    assert run("pack", "check", tmp_path / "text", store=tmp_path / "none").returncode == 1
    assert run("pack", "check", tmp_path / "missing", store=tmp_path / "none").returncode == 2


def test_preflight_says_which_factors_differ(
    compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernels.gemmpack"
    document("pack", "export", path, store=compiled_store)
    compilers, builtins = COMPILERS["nvrtc"].fingerprint().build.split("+")
    older = ToolchainFingerprint("nvrtc", "13.4", "cd" * 20)
    monkeypatch.setattr(nvrtc.Nvrtc, "fingerprint", lambda _: older)
    pack = Pack(path)
    found = preflight(pack, Settings(toolchain="local"), ["sm_90"])
    assert [factor.name for factor in found.carried[0].differs] == ["compiler_version", "compiler_build"]
    assert found.reasons == (
        "no kernel for sm_90 can be found: compiler version is 13.5 in the pack and 13.4 here; "
        f"compiler build is {compilers[:12]}+{builtins[:12]} in the pack and cdcdcdcdcdcd here",
    )
    assert preflight(pack, Settings(), ["sm_90"]).reasons == ()
    other = preflight(pack, Settings(toolchain="pack", compiler_flags=("--use_fast_math",)), ["sm_90"])
    assert {factor.name for one in other.carried for factor in one.differs} == {"flags"}

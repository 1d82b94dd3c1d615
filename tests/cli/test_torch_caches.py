"""Caches and artifacts of torch.compile on the command line: lookups of a trace; bytes stored, shipped and restored."""

from __future__ import annotations

import os
import pickle
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import UsageError
from cache_engine.frameworks import torch_compile
from cache_engine.frameworks.bundles import MAX_BYTES, group_keys
from cache_engine.frameworks.snapshots import FORMAT, Snapshot, put_snapshot, read_snapshot, snapshot_key
from cache_engine.frameworks.torch_compile import artifacts_of, put_artifacts
from cache_engine.store.disk import open_store
from tests.cli.test_cli import document, run
from tests.frameworks.fixtures import unpack
from tests.frameworks.test_inductor import Bomb
from tests.trust.keys import Builder, signers_file

GELU, OTHER, AUTOGRAD = "fotsad5mkxelu", "fb2lpveacwwtc", "abpghv2ntis6p"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return unpack("torch_trace", tmp_path) / "trace"


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    return unpack("torch_trace", tmp_path) / "artifacts.bin"


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    """The setting of machines that take host code from a builder, whose key this one has."""
    builder = Builder(tmp_path / "key")
    monkeypatch.setenv("GEMM_CACHE_HOST_CODE", "1")
    monkeypatch.setenv("GEMM_CACHE_SIGNING_KEY", str(builder.file))
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"builder {builder.line}")))
    return builder


def test_a_trace_is_listed(trace: Path, tmp_path: Path) -> None:
    found = document("caches", "ls", "--trace", trace, store=tmp_path)
    assert (found["total"], found["findings"]) == (8, [])
    assert found["results"] == {"aotautograd miss": 3, "fx_graph miss": 3, "fx_graph hit": 1, "aotautograd bypass": 1}
    assert found["lookups"][1] | {"key": ""} == {
        "cache": "fx_graph", "result": "miss", "key": "", "name": "gelu in compiled.py", "compile_id": "0/0",
        "reason": "full_miss",
    }  # fmt: skip
    few = document("caches", "ls", "freezing", "--trace", trace, store=tmp_path)
    assert [each["result"] for each in few["lookups"]] == ["bypass"]
    shown = run("caches", "ls", "--trace", trace, "--limit", "2", store=tmp_path).stdout
    assert re.search(r"fx_graph +miss +fotsad5mkxelu +gelu in compiled.py", shown)
    assert "3 fx_graph miss, 1 fx_graph hit" in shown


def test_why_a_graph_missed(trace: Path, tmp_path: Path) -> None:
    found = document("caches", "show", OTHER, GELU, "--trace", trace, store=tmp_path)
    (difference,) = found["differences"]
    assert (difference["name"], difference["a"], difference["b"]) == ("epilogue_fusion", "False", "True")
    assert found["nearest"].startswith(GELU)
    alone = document("caches", "show", OTHER, "--trace", trace, store=tmp_path)  # the nearest is found
    assert alone["differences"] == found["differences"]
    shown = run("caches", "show", OTHER, "--trace", trace, store=tmp_path).stdout
    assert re.search(r"epilogue_fusion +config +False +True", shown)
    assert f"A: gelu in compiled.py, fx_graph miss (full_miss), {OTHER}" in shown


def test_a_trace_is_compared_with_the_graphs_of_another_torch(trace: Path, tmp_path: Path) -> None:
    newer = unpack("inductor_newer", tmp_path)
    options = ("--trace", trace, "--cache", f"inductor={newer}")
    (graph,) = (path.name for path in newer.glob("fxgraph/*/*"))
    found = document("caches", "show", GELU, graph[:12], *options, store=tmp_path)
    assert (found["nearest"], found["lookup"]["result"]) == (graph, "miss")  # of a key that hit later
    assert "torch_version" in {each["name"] for each in found["differences"]}


def test_what_a_trace_does_not_say(trace: Path, tmp_path: Path) -> None:
    found = document("caches", "show", AUTOGRAD, "--trace", trace, store=tmp_path)
    assert (found["nearest"], found["differences"]) == ("", [])
    assert "TORCH_LOGS=+aot" in found["unknown"]
    for words, code, said in (
        (("show", "zzz"), 1, "no lookup has a key"),
        (("show", "a"), 1, "several lookups have keys"),
        (("show", ""), 1, "no lookup has a key"),
        (("show", GELU, "--part", "x"), 2, "--part does not go with --trace"),
        (("ls", "--kind", "triton"), 2, "--kind does not go with --trace"),
    ):
        done = run("caches", *words, "--trace", trace, store=tmp_path)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    (trace / "dedicated_log_torch_trace_1234.log").unlink()
    done = run("caches", "ls", "--trace", trace, store=tmp_path)
    assert (done.returncode, "has no log with a lookup" in done.stderr) == (2, True)


def test_artifacts_come_back_on_another_machine(artifacts: Path, trusted: Builder, tmp_path: Path) -> None:
    one, other, back = tmp_path / "one", tmp_path / "other", tmp_path / "back.bin"
    found = document("pack", "import", artifacts, "--name", "llama-1", store=one)
    assert found["torch_version"] == "2.13.0+cpu"
    document("pack", "export", tmp_path / "all.gemmpack", "--sign", trusted.file, store=one)
    assert document("pack", "import", tmp_path / "all.gemmpack", store=other)["taken"] == 2
    assert document("pack", "export", back, "--name", "llama-1", store=other)["torch_version"] == "2.13.0+cpu"
    assert back.read_bytes() == artifacts.read_bytes()
    again = run("pack", "export", back, "--name", "llama-1", store=other)
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    assert len(list(group_keys(open_store(other)))) == 2
    document("pack", "import", artifacts, "--name", "llama-2", store=other)  # the same bytes under a second name
    done = run("run", "--root", tmp_path / "root", "--restore", "llama-2", "--", "true", store=other)
    assert "restored 1 entry of llama-2" in done.stderr
    assert (tmp_path / "root/inductor/cache_artifacts/llama-2.bin").read_bytes() == artifacts.read_bytes()


def test_a_remote_carries_artifacts(
    artifacts: Path, trusted: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_REMOTE", f"file://{tmp_path}/remote")
    document("pack", "import", artifacts, "--name", "llama-1", store=tmp_path / "one")
    assert run("remote", "push", "--sign", trusted.file, store=tmp_path / "one").returncode == 0
    document("pack", "export", tmp_path / "back.bin", "--name", "llama-1", store=open_store(tmp_path / "other").root)
    assert (tmp_path / "back.bin").read_bytes() == artifacts.read_bytes()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GEMM_CACHE_HOST_CODE", "0", "the setting host_code is off"),
        ("GEMM_CACHE_TRUSTED_SIGNERS", "", "the setting trusted_signers names no file"),
    ],
)
def test_artifacts_are_host_code(
    variable: str, value: str, said: str, artifacts: Path, trusted: Builder, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    document("pack", "import", artifacts, "--name", "llama-1", store=tmp_path / "one")
    monkeypatch.setenv(variable, value)
    done = run("pack", "export", tmp_path / "back.bin", "--name", "llama-1", store=tmp_path / "one")
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "back.bin").exists()


def test_another_torch_is_refused_and_named(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = open_store(tmp_path / "one")
    assert put_artifacts(layout, "llama-1", artifacts.read_bytes()) == "2.13.0+cpu"
    found = read_snapshot(layout, "llama-1")
    assert found is not None
    for here in ("2.14.1", "2.13.0+cu130"):
        monkeypatch.setattr(torch_compile, "installed_version", {"inductor": here}.get)
        with pytest.raises(
            UsageError, match=re.escape(f"torch 2.13.0+cpu made them, and torch {here}, installed here")
        ):
            artifacts_of(layout, found[0])
    for fits in ("2.13.0", "2.13.0+cpu", None):
        monkeypatch.setattr(torch_compile, "installed_version", {"inductor": fits}.get)
        assert artifacts_of(layout, found[0]) == (artifacts.read_bytes(), "2.13.0+cpu")


def checked(*pieces: bytes, encoding: int = 1) -> bytes:
    """Bytes with the frame in which ``torch.compiler.save_cache_artifacts`` writes artifacts."""
    data = encoding.to_bytes(8, "big") + b"".join(pieces)
    return zlib.crc32(data).to_bytes(4, "big") + data


def graph(version: str, build: str = "a", run: object = None) -> bytes:
    """The pickle of a graph, as far as it states its version."""
    lines = [f"[{build * 51}] torch_version: \x00"]
    return pickle.dumps({"runnable_graph_str": f"\n# torch version: {version}\n", "lines": lines, "run": run})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "its checksum differs"),
        (b"x" * 100, "its checksum differs"),
        (checked(encoding=2), "its encoding is 2"),
        (checked(graph("2.13.0"), graph("2.14.1")), "several builds of torch: 2.13.0, 2.14.1"),
        (checked(graph(""), graph("", "b")), f"several builds of torch: {'a' * 12}, {'b' * 12}"),
    ],
)
def test_bytes_that_are_no_artifacts_are_refused(data: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(data)
    done = run("pack", "import", file, "--name", "llama-1", store=tmp_path / "one")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_the_version_is_read_and_no_pickle_is_run(tmp_path: Path) -> None:
    file, made = tmp_path / "a.bin", tmp_path / "made"
    for data, version in (
        (checked(graph("2.13.0", run=Bomb(made)), graph("2.13.0")), "2.13.0"),
        (checked(graph("")), f"build {'a' * 12}"),
        (checked(b"{}"), ""),
    ):
        file.write_bytes(data)
        assert document("pack", "import", file, "--name", "llama-1", store=tmp_path / "one")["torch_version"] == version
    assert not made.exists()


def test_artifacts_replace_no_snapshot_of_caches_or_of_a_newer_version(artifacts: Path, tmp_path: Path) -> None:
    layout = open_store(tmp_path / "one")
    for root, may in (("/srv/run", False), ("", True)):
        put_snapshot(layout, Snapshot(FORMAT, "a", root, 1.0, "", []), sign=bytes, durable=False)
        done = run("pack", "import", artifacts, "--name", "a", store=tmp_path / "one")
        assert (done.returncode, "the caches in /srv/run" in done.stderr) == ((0, False) if may else (2, True))
    path = Path(layout.group_path(snapshot_key("a")))
    newer = bytearray(path.read_bytes())
    newer[8] += 1  # after the magic
    for data, code in ((bytes(newer), 2), (b"damaged", 0)):
        path.write_bytes(data)
        assert run("pack", "import", artifacts, "--name", "a", store=tmp_path / "one").returncode == code
        assert (path.read_bytes() == data) == bool(code)


def test_what_cannot_be_stored_or_written_is_said(artifacts: Path, trusted: Builder, tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    store = tmp_path / "one"
    document("pack", "import", artifacts, "--name", "llama-1", store=store)
    cases: list[tuple[tuple[Any, ...], str]] = [
        (("import", large, "--name", "llama-1"), f"more than {MAX_BYTES:,} bytes"),
        (("import", artifacts, "--name", "../up"), "cannot name a snapshot"),
        (("import", tmp_path / "none", "--name", "x"), "cannot open"),
        (("import", artifacts, "--name", "x", "--dry-run"), "--dry-run does not go with --name"),
        (("export", tmp_path / "b", "--name", "none"), "neither the store nor the setting remote has it"),
        (("export", tmp_path / "b", "--name", "llama-1", "--arch", "sm_90"), "does not go with --name"),
    ]
    for words, said in cases:
        done = run("pack", *words, store=store)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    for path in Path(open_store(store).groups).rglob("*"):
        if path.is_file() and path.stat().st_size > 4096:
            os.truncate(path, path.stat().st_size - 1)
    done = run("pack", "export", tmp_path / "b", "--name", "llama-1", store=store)
    assert (done.returncode, "does not match its checksum" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "b").exists()

"""``run --save`` and ``--restore``: real programs, moved to other roots and machines, and what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache_engine.frameworks.bundles import group_keys
from cache_engine.frameworks.snapshots import JAX_CACHES, snapshot_key
from cache_engine.frameworks.watch import CACHES
from cache_engine.store.disk import open_store
from tests.frameworks.fixtures import unpack
from tests.trust.keys import Builder, signers_file

TRITON = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def scale(x, BLOCK: tl.constexpr):
    at = x + tl.arange(0, BLOCK)
    tl.store(at, tl.load(at) * 2)

triton.knobs.compilation.listener = lambda *, cache_hit, **_: print("hit" if cache_hit else "compiled")
for block in (64, 128):
    triton.compile(ASTSource(scale, {"x": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": block}), GPUTarget("cuda", 90, 32))
"""
JAX = """
import jax, jax.numpy as jnp
from jax._src import monitoring
monitoring.register_event_listener(
    lambda event, **_: print("hit") if event.endswith("cache_hits") else print("compiled") if event.endswith("cache_misses") else 0
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.jit(lambda x: jnp.tanh(x) @ x)(jnp.ones((8, 8)))
"""  # noqa: E501


class Machine:
    """A store and a root of their own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.store, self.root = folder / "store", folder / "root"
        unset = {name: value for name, value in os.environ.items() if name not in (*CACHES.values(), JAX_CACHES)}
        self.environment = {**unset, "GEMM_CACHE_DIR": str(self.store), **environment}

    def verb(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a verb of gemm-cache."""
        whole = [sys.executable, "-m", "cache_engine", *words]
        return subprocess.run(whole, capture_output=True, text=True, env=self.environment, timeout=120)

    def run(self, *options: str, program: str = "", python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        """Runs a program of Python by ``gemm-cache run``."""
        return self.verb("run", "--root", str(self.root), *options, "--", python, "-c", program)

    def keys(self) -> list[str]:
        """The keys of the bundles in its store."""
        return list(group_keys(open_store(self.store)))


@pytest.fixture
def one(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "one")


def signed(tmp_path: Path, builder: Builder, remote: bool = True) -> dict[str, str]:
    """The environment of machines that share a remote."""
    there = {"GEMM_CACHE_REMOTE": f"file://{tmp_path}/remote"} if remote else {}
    trusted = signers_file(tmp_path, f"builder {builder.line}")
    return {"GEMM_CACHE_SIGNING_KEY": str(builder.file), "GEMM_CACHE_TRUSTED_SIGNERS": str(trusted), **there}


def test_triton_s_kernels_are_hit_at_another_root_on_another_machine(tmp_path: Path, builder: Builder) -> None:
    """Made, signed and sent; fetched, moved, and hit by the real Triton; without a rewrite it would miss all."""
    script = tmp_path / "serve.py"
    script.write_text(TRITON)
    program = f"import runpy; runpy.run_path({str(script)!r})"
    one = Machine(tmp_path / "one", **signed(tmp_path, builder))
    done = one.run("--save", "serve-1", program=program)
    assert done.stdout.split() == ["compiled", "compiled"], done.stderr
    pushed = one.verb("remote", "push", "--sign", str(builder.file), "--json")
    assert pushed.returncode == 0, pushed.stderr
    assert json.loads(pushed.stdout)["sent"] == len(one.keys()) == 3
    shutil.rmtree(one.root)

    two = Machine(tmp_path / "two", **signed(tmp_path, builder))
    report = tmp_path / "r.json"
    done = two.run("--restore", "serve-1", "--output", str(report), program=program)
    assert done.stdout.split() == ["hit", "hit"], done.stderr
    counts = json.loads(report.read_text())["frameworks"]["triton"]
    assert (counts["found"], counts["before"], counts["after"]) == (2, 0, 0)
    assert "restored 2 entries of serve-1" in done.stderr
    again = two.run("--restore", "serve-1", program=program)
    assert "restored 0 entries of serve-1, 0 B; 2 there already" in again.stderr


@pytest.mark.soak
@pytest.mark.parametrize(("variable", "expected"), [("none", "hit"), ("all", "compiled")])
def test_jax_programs_are_hit_at_another_root(tmp_path: Path, builder: Builder, variable: str, expected: str) -> None:
    """JAX has the path of its cache in every key unless the variable is ``none``, which ``--save`` sets."""
    python = os.environ.get("JAX_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import jax"], capture_output=True).returncode:
        pytest.skip("JAX is not installed; JAX_PYTHON names a Python that has it")
    others = {} if variable == "none" else {JAX_CACHES: variable}
    trusted = {**signed(tmp_path, builder, remote=False), "GEMM_CACHE_HOST_CODE": "1", **others}
    one = Machine(tmp_path / "one", **trusted)
    made = one.run("--save", "jax", program=JAX, python=python)
    assert "compiled" in made.stdout, made.stderr
    two = Machine(tmp_path / "two", **trusted)
    two.store = one.store
    two.environment["GEMM_CACHE_DIR"] = str(one.store)
    moved = two.run("--restore", "jax", program=JAX, python=python)
    assert set(moved.stdout.split()) == {expected}, moved.stderr
    assert ("jax: bound to" in moved.stderr) == (expected == "compiled")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, ""),
        ({"GEMM_CACHE_HOST_CODE": "0"}, "inductor: host code, and the setting host_code is off: 1 entries"),
        ({"GEMM_CACHE_TRUSTED_SIGNERS": ""}, "inductor: host code, and the setting trusted_signers names no file"),
        ({"GEMM_CACHE_SIGNING_KEY": ""}, "inductor: host code, and not signed"),
    ],
)
def test_host_code_needs_the_setting_and_a_trusted_signature(
    tmp_path: Path, builder: Builder, environment: dict[str, str], said: str
) -> None:
    settings = {**signed(tmp_path, builder, remote=False), "GEMM_CACHE_HOST_CODE": "1", **environment}
    one = Machine(tmp_path / "one", **{name: value for name, value in settings.items() if value})
    file = "import os, pathlib; p = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR'], 'ab'); p.mkdir(parents=True)"
    assert "saved 1 entry as base" in one.run("--save", "base", program=f"{file}; (p / 'c.py').write_text('x')").stderr
    shutil.rmtree(one.root)
    done = one.run("--restore", "base")
    assert (one.root / "inductor" / "ab" / "c.py").exists() == (not said)
    assert said in done.stderr


def test_a_remote_gets_host_code_only_where_the_setting_allows_it(tmp_path: Path, builder: Builder) -> None:
    settings = signed(tmp_path, builder)
    one = Machine(tmp_path / "one", **settings)
    file = "import os, pathlib; p = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR'], 'ab'); p.mkdir(parents=True)"
    one.run("--save", "base", program=f"{file}; (p / 'c.py').write_text('x')")
    pushed = one.verb("remote", "push", "--sign", str(builder.file))
    assert (pushed.returncode, "host code" in pushed.stderr) == (1, True)
    one.environment["GEMM_CACHE_HOST_CODE"] = "1"
    assert one.verb("remote", "push", "--sign", str(builder.file)).returncode == 0
    two = Machine(tmp_path / "two", **settings)
    done = two.run("--restore", "base")
    assert "not fetched" in done.stderr
    assert "1 entry that the store does not have" in done.stderr
    unsigned = two.verb("remote", "pull", "--unsigned", "--json")
    assert len(json.loads(unsigned.stdout)["refused"]) == 1
    two.environment["GEMM_CACHE_HOST_CODE"] = "1"
    unsigned = two.verb("remote", "pull", "--unsigned", "--json")
    assert len(json.loads(unsigned.stdout)["refused"]) == 1, "no option replaces the signature"
    assert "restored 1 entry of base" in two.run("--restore", "base").stderr


@pytest.mark.parametrize("what", ["absent", "damaged", "version", "store", "signers"])
def test_whatever_cannot_be_restored_or_saved_is_said_and_the_command_runs(
    one: Machine, tmp_path: Path, what: str
) -> None:
    shutil.copytree(unpack("triton", tmp_path), one.root / "triton")
    one.run("--save", "base")
    group = Path(open_store(one.store).group_path(snapshot_key("base")))
    if what == "damaged":
        group.write_bytes(b"damaged")
    elif what == "version":
        group.write_bytes(group.read_bytes()[:8] + b"\x09" + group.read_bytes()[9:])
    elif what == "store":
        shutil.rmtree(one.store)
        one.store.write_text("no folder")
    elif what == "signers":
        one.environment |= {"GEMM_CACHE_HOST_CODE": "1", "GEMM_CACHE_TRUSTED_SIGNERS": str(tmp_path / "none")}
    name = "other" if what == "absent" else "base"
    before = {file: file.read_bytes() for file in one.root.rglob("*") if file.is_file()}
    program = "import sys; print('served'); sys.exit(7)"
    done = one.run("--restore", name, "--save", "base" if what == "store" else "next", program=program)
    assert (done.returncode, done.stdout) == (7, "served\n"), done.stderr
    assert f"{name} is not restored: " in done.stderr
    assert "Traceback" not in done.stderr
    assert before.items() <= {file: file.read_bytes() for file in one.root.rglob("*") if file.is_file()}.items()


def test_a_full_disk_loses_neither_the_root_nor_the_last_snapshot(one: Machine, tmp_path: Path) -> None:
    """No file may have more than 5,000 bytes: a kernel's CUBIN and bundle have more, other files do not."""
    shutil.copytree(unpack("triton", tmp_path), one.root / "triton")
    one.run("--save", "base")
    (one.root / "compute_cache").mkdir()
    (one.root / "compute_cache" / "x").write_bytes(os.urandom(10_000))
    shutil.move(one.root / "triton", tmp_path / "aside")
    command = ["run", "--root", str(one.root), "--restore", "base", "--save", "base", "--", "echo", "served"]
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (5000,) * 2); "
    whole = [
        sys.executable,
        "-c",
        f"{limit}os.execv(sys.argv[1], sys.argv[1:])",
        sys.executable,
        "-m",
        "cache_engine",
        *command,
    ]
    done = subprocess.run(whole, capture_output=True, text=True, env=one.environment, timeout=60)
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
    assert "base is not restored: [Errno 27]" in done.stderr
    assert "base is not saved: [Errno 27]" in done.stderr
    assert not list(one.root.glob(".gemm-cache-restore-*"))
    assert "restored 4 entries of base" in one.run("--restore", "base").stderr


def test_a_root_that_cannot_be_written_gets_nothing(one: Machine, tmp_path: Path) -> None:
    one.root.parent.mkdir()
    one.root.write_text("no folder")
    done = one.run("--restore", "base", "--save", "next", program="print('served')")
    assert (done.returncode, done.stdout) == (0, "served\n")
    assert "cannot be written" in done.stderr
    assert one.keys() == []


def test_a_root_without_a_kernel_replaces_no_snapshot(one: Machine, tmp_path: Path) -> None:
    shutil.copytree(unpack("triton", tmp_path), one.root / "triton")
    one.run("--save", "base")
    shutil.rmtree(one.root)
    assert "has no complete entry" in one.run("--save", "base").stderr
    assert "restored 4 entries of base" in one.run("--restore", "base").stderr


def test_a_root_and_a_command_of_any_bytes_are_saved_restored_and_reported(one: Machine, tmp_path: Path) -> None:
    """A path may have bytes that are not UTF-8, which no group file of Triton's can name, and a line's end."""
    one.root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff\n"))
    shutil.copytree(unpack("triton", tmp_path), one.root / "triton")
    words = ["--output", str(tmp_path / "r.json"), "--", "true", os.fsdecode(b"\xfe")]
    for option, said in (("--save", "saved 4 entries"), ("--restore", "triton: the path of the root is not UTF-8: 4")):
        done = one.verb("run", "--root", str(one.root), option, "base", *words)
        assert (done.returncode, said in done.stderr) == (0, True), done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["command"] == ["true", "\ufffd"]


@pytest.mark.parametrize("name", ["a/b", ""])
def test_a_name_that_is_none_is_refused_before_the_command_runs(one: Machine, name: str) -> None:
    done = one.run("--save", name, program="print('served')")
    assert (done.returncode, done.stdout) == (2, "")
    assert not one.root.exists()


def test_a_pack_carries_a_snapshot(tmp_path: Path) -> None:
    one, two = Machine(tmp_path / "one"), Machine(tmp_path / "two")
    shutil.copytree(unpack("triton", tmp_path), one.root / "triton")
    prints = f"import os; print(os.environ[{JAX_CACHES!r}])"
    assert one.run("--save", "base", program=prints).stdout == "none\n", "without it no program of JAX moves"
    assert one.verb("pack", "export", str(tmp_path / "a.gemmpack")).returncode == 0
    assert two.verb("pack", "import", str(tmp_path / "a.gemmpack")).returncode == 0
    done = two.run("--restore", "base", program=prints)
    assert ("restored 4 entries of base" in done.stderr, done.stdout) == (True, "none\n")


@pytest.mark.parametrize("option", ["--save", "--restore"])
def test_a_kill_while_it_saves_or_restores_loses_nothing(one: Machine, tmp_path: Path, option: str) -> None:
    """The next run does the rest; what was there is as it was."""
    shutil.copytree(unpack("triton", tmp_path), one.root / "triton")
    one.run("--save", "base")
    if option == "--restore":
        shutil.rmtree(one.root)
    victim = f"""
import os, signal, sys
from cache_engine.frameworks import restore, snapshots
left = 2
def killed(*arguments, **others):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **others)
if {option!r} == "--save":
    real, snapshots.bundles.put_group = snapshots.bundles.put_group, killed
    snapshots._is_stored = lambda *_: False
else:
    real, restore._is_renamed = restore._is_renamed, killed
from cache_engine.cli.main import main
sys.argv = ["gemm-cache", "run", "--root", {str(one.root)!r}, {option!r}, "base", "--", "true"]
main()
"""
    dead = subprocess.run([sys.executable, "-c", victim], env=one.environment, capture_output=True, timeout=60)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    if option == "--restore":
        assert list(one.root.glob(".gemm-cache-restore-*"))
        found = one.run("--restore", "base")
        assert "restored 3 entries" in found.stderr
        assert "1 there already" in found.stderr
        assert not list(one.root.glob(".gemm-cache-restore-*"))
    else:
        shutil.rmtree(one.root)
        assert "restored 4 entries" in one.run("--restore", "base").stderr


def test_two_that_restore_at_once_leave_each_entry_whole(one: Machine, tmp_path: Path) -> None:
    shutil.copytree(unpack("triton", tmp_path), one.root / "triton")
    one.run("--save", "base")
    before: dict[str, Any] = {
        str(file.relative_to(one.root)): file.stat().st_size for file in one.root.rglob("*.cubin")
    }
    shutil.rmtree(one.root)
    whole = [sys.executable, "-m", "cache_engine", "run", "--root", str(one.root), "--restore", "base", "--", "true"]
    both = [subprocess.Popen(whole, env=one.environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate(timeout=60)[1] for each in both]
    assert all("Traceback" not in text for text in said), said
    assert {str(file.relative_to(one.root)): file.stat().st_size for file in one.root.rglob("*.cubin")} == before
    assert len(list(one.root.rglob("__grp__*.json"))) == 4

"""The verb ``run``: the caches of a command, what it compiled and when, its signals and its exit code."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cache_engine.frameworks.watch import CACHES, NVCC, Run, Watch
from tests.frameworks.fixtures import unpack

_COPY = """
import os, pathlib, shutil, sys
def compiles(kernel, cache=os.environ["TRITON_CACHE_DIR"]):
    # As Triton does: the files in turn, the one that names the group last.
    source, target = pathlib.Path(sys.argv[1], kernel), pathlib.Path(cache, kernel)
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir(), key=lambda file: (file.name.startswith("__grp__"), file.name)):
        shutil.copyfile(file, target / file.name)
kernels = sorted(os.listdir(sys.argv[1]))
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Kernels that Triton made, for a program to put into its own cache."""
    return unpack("triton", tmp_path)


def _command(cache: Path, body: str, *options: str, root: Path) -> list[str]:
    program = [sys.executable, "-c", _COPY + body, str(cache)]
    return [sys.executable, "-m", "cache_engine", "run", "--root", str(root), *options, "--", *program]


def _run(cache: Path, body: str, *options: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = {name: value for name, value in os.environ.items() if name not in CACHES.values()}
    command = _command(cache, body, *options, root=root)
    return subprocess.run(command, capture_output=True, text=True, env=unset | environment, timeout=60)


def _report(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_kernels_are_counted_before_and_after_it_was_ready(cache: Path, tmp_path: Path) -> None:
    body = f"""
compiles(kernels[0]); compiles(kernels[1])
pathlib.Path({str(tmp_path / "up")!r}).touch()
import time; time.sleep(2.5)
compiles(kernels[2])
"""
    said = [
        "--ready",
        f"file:{tmp_path / 'up'}",
        "--output",
        str(tmp_path / "r.json"),
        "--output",
        str(tmp_path / "r.prom"),
    ]
    done = _run(cache, body, *said, root=tmp_path / "root")
    assert done.returncode == 0, done.stderr
    report = _report(tmp_path / "r.json")
    counts = report["frameworks"]["triton"]
    assert (counts["found"], counts["before"], counts["after"]) == (3, 2, 1)
    assert [one["phase"] for one in report["compiled"]].count("after") == 1
    assert counts["seconds"] > 0
    assert report["started_at"] <= report["ready_at"] <= report["ended_at"]
    late = next(one for one in report["compiled"] if one["phase"] == "after")
    assert f"after ready: triton {late['name']}" in done.stderr
    assert "3 compiles seen, 1 after ready" in done.stderr
    metrics = (tmp_path / "r.prom").read_text()
    assert 'gemm_cache_run_compiles_total{framework="triton",phase="after"} 1.0\n' in metrics
    assert "gemm_cache_run_ready 1.0\n" in metrics
    assert "not watched: " in done.stderr
    assert "gemm_cache_run_kernels" in metrics


def test_what_is_there_is_no_compile_and_one_that_is_gone_is(cache: Path, tmp_path: Path) -> None:
    """The second run of a server: it finds its kernels below the root, but for one that was deleted."""
    body = """
import time
for kernel in kernels:
    if not pathlib.Path(os.environ["TRITON_CACHE_DIR"], kernel).exists():
        compiles(kernel)
    print("served", kernel, flush=True)
    if kernel == kernels[0]:
        print("startup complete", flush=True)
        time.sleep(2.5)
"""
    said = ["--ready", "line:startup complete", "--forbid-after-ready", "--output", str(tmp_path / "r.json")]
    first = _run(cache, body, *said, root=tmp_path / "root")
    kernels = sorted(os.listdir(tmp_path / "root" / "triton"))
    assert first.returncode == 3, first.stderr
    assert first.stdout.count("served") == len(kernels) == 4

    second = _run(cache, body, *said, root=tmp_path / "root")
    assert second.returncode == 0, second.stderr
    assert "0 compiles seen, 0 after ready" in second.stderr
    assert _report(tmp_path / "r.json")["frameworks"]["triton"] == {"found": 4, "before": 0, "after": 0, "seconds": 0.0}

    lost = tmp_path / "root" / "triton" / kernels[-1]
    for file in lost.iterdir():
        file.unlink()
    lost.rmdir()
    third = _run(cache, body, *said, root=tmp_path / "root")
    assert third.returncode == 3
    assert [one["id"] for one in _report(tmp_path / "r.json")["compiled"]] == [kernels[-1]]
    assert len(list((tmp_path / "root" / "gemm-cache" / "runs").iterdir())) == 3


def test_a_line_of_bytes_that_are_no_text_is_a_sign_too(tmp_path: Path) -> None:
    command: list[str | bytes] = [sys.executable, "-m", "cache_engine", "run", "--root", str(tmp_path)]
    done = subprocess.run(
        [*command, "--ready", b"line:\xff\xfe", "--", "printf", r"\377\376\n"], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, b"\xff\xfe\n")
    assert b"the command was ready after" in done.stderr


def test_caches_that_are_not_read_are_counted_by_name(tmp_path: Path) -> None:
    body = """
import os, pathlib
for variable, name in (
    ("JAX_COMPILATION_CACHE_DIR", "jit_f-01-cache"), ("JAX_COMPILATION_CACHE_DIR", "jit_f-01-atime"),
    ("TORCHINDUCTOR_CACHE_DIR", "fxgraph/ab/key/1"), ("TORCHINDUCTOR_CACHE_DIR", "ab/cab.py"),
    ("CUDA_CACHE_PATH", "index"), ("CUDA_CACHE_PATH", "1/2/0123456789abcd"),
):
    path = pathlib.Path(os.environ[variable], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
"""
    program = [sys.executable, "-c", body]
    file = tmp_path / "r.json"
    command = ["-m", "cache_engine", "run", "--root", str(tmp_path / "root"), "--output", str(file), "--", *program]
    unset = {name: value for name, value in os.environ.items() if name not in CACHES.values()}
    subprocess.run([sys.executable, *command], env=unset, check=True, capture_output=True)
    found = {name: (counts["found"], counts["before"]) for name, counts in _report(file)["frameworks"].items()}
    assert found == {"jax": (1, 1), "inductor": (1, 1), "compute_cache": (1, 1)}


def test_variables_that_are_set_stay(cache: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    body = "compiles(kernels[0]); print(json.dumps({name: os.environ[name] for name in sys.argv[2:]}))"
    command = _command(cache, "import json\n" + body, "--output", str(tmp_path / "r.json"), root=tmp_path / "root")
    unset = {name: value for name, value in os.environ.items() if name not in CACHES.values()}
    own_store = {"GEMM_CACHE_DIR": str(tmp_path / "root" / "gemm-cache")}
    launcher = shutil.which("gemm-cache-nvcc", path=os.path.dirname(sys.executable))
    assert launcher is not None
    done = subprocess.run(
        [*command, *CACHES.values(), *NVCC, *own_store],
        capture_output=True,
        text=True,
        env=unset | {"TRITON_CACHE_DIR": str(own)},
    )
    assert (
        json.loads(done.stdout)
        == {
            variable: str(own if folder == "triton" else tmp_path / "root" / folder)
            for folder, variable in CACHES.items()
        }
        | dict.fromkeys(NVCC, launcher)
        | own_store
    )
    assert _report(tmp_path / "r.json")["frameworks"]["triton"]["before"] == 1


def test_a_server_that_answers_is_ready(cache: Path, tmp_path: Path) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if (tmp_path / "root" / "triton").exists() else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        body = "import time; time.sleep(1.5); compiles(kernels[0]); time.sleep(2.5)"
        url = f"http://127.0.0.1:{server.server_address[1]}/health"
        done = _run(cache, body, "--ready", url, "--output", str(tmp_path / "r.json"), root=tmp_path / "root")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert done.returncode == 0, done.stderr
    report = _report(tmp_path / "r.json")
    assert report["ready_at"] - report["started_at"] > 1.5
    assert report["frameworks"]["triton"]["before"] == 1


@pytest.mark.parametrize(
    ("body", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("os.kill(os.getpid(), 15)", 143)]
)
def test_the_exit_code_is_the_command_s(body: str, code: int, cache: Path, tmp_path: Path) -> None:
    assert _run(cache, body, root=tmp_path / "root").returncode == code


def test_a_command_that_cannot_be_started_has_the_code_of_a_shell(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    for command, code in (("no-such-program", 127), (str(tmp_path / "text"), 126)):
        whole = [sys.executable, "-m", "cache_engine", "run", "--root", str(tmp_path / "root"), "--", command]
        done = subprocess.run(whole, capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr


def test_signals_reach_the_command_and_one_asks_for_the_report(cache: Path, tmp_path: Path) -> None:
    body = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: (print("term", flush=True), sys.exit(5)))
signal.signal(signal.SIGINT, lambda *_: print("int", flush=True))
compiles(kernels[0])
print("up", flush=True)
while True: time.sleep(0.05)
"""
    command = _command(cache, body, "--output", str(tmp_path / "r.json"), root=tmp_path / "root")
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline() == "up\n"
    running.send_signal(signal.SIGINT)
    assert running.stdout.readline() == "int\n"
    running.send_signal(signal.SIGUSR1)
    assert "1 compile seen" in running.stderr.readline()
    assert _report(tmp_path / "r.json")["exit_code"] is None
    running.send_signal(signal.SIGTERM)
    out, _ = running.communicate(timeout=30)
    assert (out, running.returncode) == ("term\n", 5)
    assert _report(tmp_path / "r.json")["exit_code"] == 5


def test_a_process_that_is_left_behind_is_named(cache: Path, tmp_path: Path) -> None:
    body = """
import subprocess
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(left.pid)
"""
    done = _run(cache, body, root=tmp_path / "root")
    os.kill(int(done.stdout), signal.SIGKILL)
    assert (done.returncode, "1 process that the command left running" in done.stderr) == (0, True)


def test_a_root_that_cannot_be_written_is_said_and_the_command_runs(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = _run(
        cache, "print(os.environ.get('CUPY_CACHE_DIR'))", root=tmp_path / "file", TRITON_CACHE_DIR=str(tmp_path)
    )
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert f"{tmp_path / 'file'} cannot be written" in done.stderr


def test_two_runs_on_one_root_say_so(cache: Path, tmp_path: Path) -> None:
    first = subprocess.Popen(
        _command(cache, "print('up', flush=True); input()", root=tmp_path / "root"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert first.stdout is not None
    assert first.stdout.readline() == "up\n"
    second = _run(cache, "", root=tmp_path / "root")
    _, said = first.communicate("\n", timeout=30)
    assert "another run uses" in second.stderr
    assert "another run uses" not in said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", "COMMAND"),
        ("--forbid-after-ready -- true", "needs --ready"),
        ("--ready ftp://x -- true", "http"),
        ("--ready http:/x -- true", "http://"),
        ("--ready line: -- true", "line:TEXT"),
        ("--ready 'startup complete' -- true", "line:TEXT or file:FILE"),
    ],
)
def test_what_does_not_go_together_is_refused_before_it_runs(options: str, named: str, tmp_path: Path) -> None:
    whole = [sys.executable, "-m", "cache_engine", "run", *shlex.split(options)]
    done = subprocess.run(whole, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 2
    assert named in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_command_are_its_own(tmp_path: Path) -> None:
    """--config is an old name of an option of ours."""
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--config", "x", "--json", "--store", "y"]
    whole = [sys.executable, "-m", "cache_engine", "run", "--root", str(tmp_path / "root")]
    for between in ([], ["--"]):
        done = subprocess.run([*whole, *between, *program], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "['--config', 'x', '--json', '--store', 'y']\n"), done.stderr


def test_a_command_that_was_never_ready_proves_nothing(cache: Path, tmp_path: Path) -> None:
    done = _run(cache, "", "--ready", f"file:{tmp_path / 'up'}", "--forbid-after-ready", root=tmp_path / "root")
    assert (done.returncode, "before it was ready" in done.stderr) == (1, True)


def test_a_server_that_speaks_no_http_is_not_ready_and_one_that_never_answers_holds_up_no_signal(
    cache: Path, tmp_path: Path
) -> None:
    """``http.client`` raises what is no ``OSError`` for the first; the second would keep a stop waiting."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/health"
        body = """
import signal, socket, time
server = socket.socket(fileno=0)
accepted, _ = server.accept()
accepted.recv(9999); accepted.sendall(b"no http"); accepted.close()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
accepted, _ = server.accept()
print("asked", flush=True)
while True: accepted.send(b"H"); time.sleep(0.5)
"""
        command = _command(cache, body, "--ready", url, root=tmp_path / "root")
        # Of what is open, the command inherits its standard input alone.
        running = subprocess.Popen(command, stdin=server.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert running.stdout is not None
        assert running.stdout.readline() == b"asked\n"
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=30)
    assert running.returncode == 5, said
    assert b"was never ready" in said


def test_a_command_that_ends_at_once_was_ready_if_it_said_so(cache: Path, tmp_path: Path) -> None:
    body = "print('startup complete', flush=True); import time; time.sleep(0.05); compiles(kernels[0])"
    said = ["--ready", "line:startup complete", "--forbid-after-ready"]
    done = _run(cache, body, *said, root=tmp_path / "root")
    assert (done.returncode, "1 after ready" in done.stderr) == (3, True), done.stderr


def test_a_reader_that_is_slow_gets_all_of_the_output(cache: Path, tmp_path: Path) -> None:
    body = "sys.stdout.write('x' * 500_000 + 'end')"
    command = _command(cache, body, "--ready", "line:y", root=tmp_path / "root")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as another process that shares a terminal may do
    running = subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(4)
    with open(reader, "rb") as file:
        found = file.read()
    assert (len(found), found[-3:], running.wait(30)) == (500_003, b"end", 0)


def test_output_that_nobody_reads_changes_no_exit_code(cache: Path, tmp_path: Path) -> None:
    """Neither that of the command nor the report, which SIGUSR1 asks for while it runs."""
    body = "print('up', flush=True); os.kill(os.getppid(), 10); import time; time.sleep(0.5); print('x'); sys.exit(7)"
    for options in ((), ("--ready", "line:y")):
        reader, writer = os.pipe()
        os.close(reader)
        command = _command(cache, body.replace("print", "(lambda *a, **k: 0)"), *options, root=tmp_path / "root")
        done = subprocess.run(command, stdout=writer, stderr=writer, timeout=30)
        os.close(writer)
        assert done.returncode == 7


def test_an_exit_code_is_known_where_ended_children_are_ignored(cache: Path, tmp_path: Path) -> None:
    command = _command(cache, "sys.exit(7)", root=tmp_path / "root")
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run([sys.executable, "-c", ignoring, *command], capture_output=True)
    assert done.returncode == 7


def test_processes_that_were_left_and_have_ended_are_taken_note_of_while_it_runs(cache: Path, tmp_path: Path) -> None:
    """Else a server that starts many would run out of process numbers."""
    body = """
import time
for _ in range(20):
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
deadline = time.monotonic() + 20
while (left := len(open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split())) > 1:
    assert time.monotonic() < deadline, left
    time.sleep(0.05)
"""
    done = _run(cache, body, root=tmp_path / "root")
    assert done.returncode == 0, done.stderr


def test_a_signal_that_comes_when_the_command_has_ended_loses_no_report() -> None:
    """As Ctrl-C does, which ends the command first while the caches are read."""
    program = """
import os, signal
from cache_engine.frameworks.supervisor import Supervisor
class Watch:
    run = type("Run", (), {"ready_at": None})
    def poll(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return 0.0
print(Supervisor(Watch(), None, lambda: None).run(["true"], os.environ))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_clock_that_is_set_back_hides_no_compile_after_it_was_ready(cache: Path, tmp_path: Path) -> None:
    run = Run(command=[], root="", started_at=0.0)
    (tmp_path / "watched").mkdir()
    watch = Watch(run, {"TRITON_CACHE_DIR": str(tmp_path / "watched"), "HOME": str(tmp_path)})
    run.ready_at = time.time() + 3600
    for kernel in sorted(cache.iterdir())[:2]:
        shutil.copytree(kernel, tmp_path / "watched" / kernel.name)
        watch.poll()
    counts = run.frameworks["triton"]
    assert (counts.before, counts.after) == (1, 1)

"""The core without any extra does all that it promises, and each other verb says which command installs the rest."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.cli.main import commands
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.settings.extras import EXTRAS, how_to_install, pip
from tests.frameworks.fixtures import unpack

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHAPE = ("64", "48", "80", "--dtype", "fp32", "--arch", "sm_90")


def _core() -> set[str]:
    """The names of the packages that pip installs for the core: its dependencies, and theirs."""
    found: set[str] = set()
    wanted = list(PROJECT["dependencies"])
    while wanted:
        name, _, condition = wanted.pop().partition(";")
        name = re.split(r"[\s<>=!~\[(]", name.strip())[0].lower().replace("_", "-")
        if name not in found and "extra" not in condition and _installed(name):
            found.add(name)
            wanted += metadata.requires(name) or []
    return found


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the core's packages, and of no other."""
    folder = tmp_path_factory.mktemp("core")
    for name in _core():
        for file in metadata.files(name) or ():
            if ".." not in file.parts:
                place = folder / file
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(Path(str(file.locate())).resolve())
    return folder


class Core:
    """A Python that sees the standard library, the core's packages and this checkout."""

    def __init__(self, packages: Path, store: Path) -> None:
        self._packages, self.store = packages, store

    def python(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Runs it."""
        return subprocess.run(
            self._command(*arguments), capture_output=True, text=True, env=self._environment(), timeout=120
        )

    def forking(self) -> subprocess.Popen[str]:
        """One that runs ``_FORKING``."""
        return subprocess.Popen(
            self._command("-c", _FORKING),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment(),
        )

    def _command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-S", *map(str, arguments)]  # -S: without site-packages

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{self._packages}{os.pathsep}{ROOT}"}

    def run(self, *arguments: object) -> str:
        """What ``gemm-cache`` prints with these arguments; it must succeed."""
        done = self.python("-m", "cache_engine", "--store", self.store, *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(scope="session")
def _filled(core: Path, tmp_path_factory: pytest.TempPathFactory) -> Core:
    """Its folder also has the files that the table names. Only the results of the evaluator come from this process."""
    folder = tmp_path_factory.mktemp("filled")
    filled = Core(core, folder / "store")
    filled.run("compile", *SHAPE)
    with open_cache(filled.store) as cache:
        cache.evaluations.evaluate(EvaluationProblem(64, 48, 80), PRESETS["SG2262"])
    filled.run("pack", "export", folder / PACK)
    filled.run("evaluations", folder / RESULTS)
    unpack("triton", folder)
    (folder / MEASURED).write_text("arch,M,N,K,latency_us\nH100,4096,4096,4096,250\n")
    return filled


@pytest.fixture
def filled(_filled: Core, core: Path, tmp_path: Path) -> Core:
    """With a store of one kernel, compiled without any extra; the test's own copy."""
    return Core(core, Path(shutil.copytree(_filled.store.parent, tmp_path / "filled")) / "store")


def test_this_python_sees_no_module_of_an_extra(core: Path, tmp_path: Path) -> None:
    """So that the tests below prove something."""
    modules = [module for extra in EXTRAS.values() for module in extra]
    program = "import importlib.util, sys; print([m for m in sys.argv[1:] if importlib.util.find_spec(m)])"
    here = Core(core, tmp_path)
    done = here.python("-c", program, "pandas", "pytest", "triton", "cuda", *modules)
    assert done.stdout == "[]\n", done.stderr
    assert here.python("-c", "import rich, click, cache_engine").returncode == 0


def test_the_core_compiles_keeps_and_serves(filled: Core, tmp_path: Path) -> None:
    found = json.loads(filled.run("compile", *SHAPE, "--json"))
    assert found["tier"] == "disk"
    assert json.loads(filled.run("verify", "--json"))["findings"] == []
    assert "FFMA" in filled.run("show", found["key"], "--part", "sass")
    filled.run("pack", "export", tmp_path / "kernels.gemmpack")
    filled.run("clean", "--yes", "--all")
    assert json.loads(filled.run("stats", "--json"))["entries"] == 0
    filled.run("pack", "import", tmp_path / "kernels.gemmpack")
    assert json.loads(filled.run("compile", *SHAPE, "--json"))["tier"] == "disk"


def test_programs_import_the_evaluator_and_read_its_results_without_the_extra(filled: Core) -> None:
    program = (
        "import sys; from cache_engine import ExtraMissing, open_cache\n"
        "from cache_engine.evaluation import GPUS, PRESETS, EvaluationProblem\n"
        "with open_cache(sys.argv[1]) as cache:\n"
        "    answer = cache.evaluations.evaluate(EvaluationProblem(64, 48, 80), PRESETS['SG2262'])\n"
        "print(answer.cached, GPUS['H100'].sms)\n"
        "from cache_engine.evaluation import predict\n"
        "try: predict(EvaluationProblem(64, 48, 80), GPUS['H100'])\n"
        "except ExtraMissing as error: print(error)"
    )
    done = filled.python("-c", program, filled.store)
    message = f"the GPU model needs numpy, which is not installed; run: {how_to_install('evaluate')}"
    assert done.stdout == f"True 132\n{message}\n", done.stderr


def test_every_public_name_can_be_looked_at_without_extras(filled: Core) -> None:
    """As ``import *``, ``help`` and editors do."""
    program = (
        "import inspect, pydoc, cache_engine\n"
        "from cache_engine import *\n"
        "assert {*cache_engine.__all__} <= {name for name, _ in inspect.getmembers(cache_engine)} and explain\n"
        "print('model_shapes' in pydoc.plain(pydoc.render_doc(cache_engine)))\n"
        "for name in cache_engine._MOVED: pydoc.render_doc(getattr(cache_engine, name))\n"
    )
    done = filled.python("-c", program)
    assert done.stdout == "True\n", done.stderr


CORE, DASHBOARD, EVALUATE, GPU, TEAM = "", "dashboard", "evaluate", "gpu", "team"
BROKER = ("--broker", "redis://host", "--remote", "file:///none")
CACHE, ENTRY = "triton=triton", "G76X"  # what Triton made, and the first letters of its key
KEY, PACK, OTHER_PACK, RESULTS, MEASURED = "KEY", "kernels.gemmpack", "other.gemmpack", "results.json", "measured.csv"
"""What stands for the key of the stored kernel, and files."""

# Each verb with arguments, and the extra that it needs. Help stands for a verb that takes long, or needs damage.
VERBS = {
    "compile": (SHAPE, CORE),
    "time": (SHAPE, GPU),
    "warm": (("Llama-3.1-8B", "--m", "16", "--arch", "sm_90", "--dry-run"), CORE),
    "warm --sample": (("--help",), CORE),
    "warm --by shape": (("Llama-3.1-8B", "--arch", "sm_90", "--m", "16", "--dry-run"), CORE),
    "ls": ((), DASHBOARD),
    "sql": ((), DASHBOARD),
    "run": (("--", "true"), CORE),
    "caches export": (("--help",), CORE),
    "show": ((KEY, "--part", "sass"), CORE),
    "show KEY": ((KEY, "--part", "sass"), CORE),
    "show --output": (("-",), CORE),
    "show KEY --output": (("-",), CORE),
    "explain": (SHAPE, CORE),
    "stats": ((), CORE),
    "stats --format prometheus": ((), CORE),
    "stats --by arch": ((), DASHBOARD),
    "stats --by time": ((), CORE),
    "stats --by toolchain": ((), DASHBOARD),
    "doctor": ((), CORE),
    "log": ((), CORE),
    "log --audit": ((), CORE),
    "log --jobs": ((), CORE),
    "pin": ((KEY,), CORE),
    "pin --remove": (("--all",), CORE),
    "tune": (("64", "48", "80"), GPU),
    "tune --dry-run": (("64", "48", "80"), CORE),
    "tune --check": ((), CORE),
    "timings": ((), CORE),
    "timings -": ((), CORE),
    "clean": ((), CORE),
    "store migrate": (("--dry-run",), CORE),
    "verify --repair": ((), CORE),
    "verify": ((), CORE),
    "verify --quarantined": ((), CORE),
    "verify --delete": (("--all",), CORE),
    "store sync": ((), DASHBOARD),
    "pack export": ((OTHER_PACK,), CORE),
    "pack import": ((PACK,), CORE),
    "pack check": ((PACK, "--arch", "sm_90"), CORE),
    "verify --signatures": ((), TEAM),
    "farm worker": ((*BROKER, "--sign", "key"), TEAM),
    "farm compile": (("Llama-3.1-8B", *BROKER), TEAM),
    "farm status": (("--broker", "redis://host"), TEAM),
    "remote status": (("file:///none",), TEAM),
    "remote push": (("file:///none",), TEAM),
    "remote pull": (("file:///none",), TEAM),
    "remote verify": (("file:///none",), TEAM),
    "remote clean": (("file:///none", "--days", "1"), TEAM),
    "evaluate": (("64", "48", "80", "--chip", "H100"), EVALUATE),
    "evaluate 64 48 96": (("--chip", "SG2262"), EVALUATE),
    "evaluate Qwen3-0.6B": (("--chip", "SG2262", "--m", "16"), EVALUATE),
    "evaluate 64 48 80": (("--chip", "SG2262"), CORE),  # a stored result
    "evaluations": ((), CORE),
    "calibrate --check all": ((MEASURED,), EVALUATE),
    "calibrate": ((MEASURED, "--chip", "H100"), EVALUATE),
    "evaluations -": (("--chip", "SG2262"), CORE),
    "evaluations --import": ((RESULTS,), CORE),
    "evaluations --delete": ((), CORE),
    "demand": (("--by", "kernel"), CORE),
    "demand --promote": (("--dry-run",), CORE),
    "caches": ((), CORE),
    "nvcc": (("--help",), CORE),  # it needs a toolkit, and no extra
    "caches ls": (("--cache", CACHE), CORE),
    "caches show": ((ENTRY, "--part", "sass", "--cache", CACHE), CORE),
    f"caches show {ENTRY}": ((ENTRY, "--cache", CACHE), CORE),
    "caches clean": (("--arch", "sm_80", "--cache", CACHE), CORE),
    "dashboard": (("--port", "1"), DASHBOARD),
}


def _every_verb(group: click.Group = commands, path: str = "") -> Iterator[str]:
    for name, verb in group.commands.items():
        if isinstance(verb, click.Group):
            yield from _every_verb(verb, f"{path}{name} ")
        elif not verb.hidden:
            yield f"{path}{name}"


def test_every_verb_is_in_the_table() -> None:
    assert [verb for verb in _every_verb() if verb not in VERBS] == []


# Runs ``_WITH_GPU`` in a child for each line of arguments, forked from a process that has imported what most verbs do.
_FORKING = """
import json, os, sys
import rich.console, rich.table, cache_engine.cli.support, cache_engine.cache.cache
for line in sys.stdin:
    program, arguments, folder = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv[1:] = arguments
    exec(program)
    break
"""


@pytest.fixture(scope="module")
def forking(_filled: Core) -> Iterator[subprocess.Popen[str]]:
    """The process that forks one for each verb: Python and the imports take 0.3 s."""
    with _filled.forking() as process:
        yield process


# As on a machine with a GPU, where the verbs that need one would go on.
_WITH_GPU = """
import sys
from cache_engine.cli.main import main
from cache_engine.gpu import probe
from cache_engine.model.fingerprint import DeviceFingerprint
probe.gpu = lambda: DeviceFingerprint("NVIDIA H100", "sm_90", 132, 80 * 2**30, 50 * 2**20, 1_980_000, "13.0")
main()
"""


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_works_without_extras_or_says_the_one_command_to_run(
    verb: str, filled: Core, forking: subprocess.Popen[str], tmp_path: Path
) -> None:
    given, extra = VERBS[verb]
    (record,) = (filled.store / "metadata").rglob("*.json")
    folder = filled.store.parent
    named = {KEY: record.stem, **{name: str(folder / name) for name in (PACK, OTHER_PACK, RESULTS, MEASURED)}}
    named[CACHE] = f"triton={folder / 'triton'}"
    arguments = [named.get(each, each) for each in (*verb.split(), *given)]
    assert forking.stdin is not None
    assert forking.stdout is not None
    asked = (_WITH_GPU, ["--store", str(filled.store), *arguments], str(tmp_path))
    print(json.dumps(asked), file=forking.stdin, flush=True)
    code = int(forking.stdout.readline())
    said = [(tmp_path / name).read_text() for name in ("stdout", "stderr")]
    if extra == CORE:
        assert code == 0, said
        return
    assert code == 3, said
    (line,) = said[1].splitlines()
    command = re.escape(how_to_install(extra))
    assert re.fullmatch(rf"error: .+ needs \w+, which is not installed; run: {command}", line)


def test_python_gets_an_error_with_the_one_command(filled: Core) -> None:
    program = (
        _WITH_GPU.partition("main()")[0]
        + """
from cache_engine import GemmCacheError, matmul, open_cache
from cache_engine.index import queries
with open_cache(sys.argv[1]) as cache:
    calls = [lambda: matmul(None, None), lambda: cache.query(queries.count, queries.KernelFilter())]
    for call in calls:
        try:
            call()
        except GemmCacheError as error:
            print(type(error).__name__, error)
"""
    )
    done = filled.python("-c", program, filled.store)
    assert done.stdout.splitlines() == [
        f"ExtraMissing matmul needs cupy, which is not installed; run: {how_to_install('gpu')}",
        f"ExtraMissing the index needs duckdb, which is not installed; run: {how_to_install('dashboard')}",
    ], done.stderr


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file://{0}/a checkout", "dir_info": {"editable": True}}, "-e '{0}/a checkout[gpu]'"),
        ({"url": "file://{0}/a%20checkout", "dir_info": {}}, "'{0}/a checkout[gpu]'"),
        ({"url": "file://{0}/a.whl", "archive_info": {}}, "'gemm-cache[gpu] @ file://{0}/a.whl'"),
        ({"url": "file://{0}/gone.whl", "archive_info": {}}, "'cupy-cuda13x<15,>=14.2' numpy"),
        ({"url": "file://{0}/gone", "dir_info": {"editable": True}}, "'cupy-cuda13x<15,>=14.2' numpy"),
        ({"url": "https://host.example/a.whl", "archive_info": {}}, "'cupy-cuda13x<15,>=14.2' numpy"),
        (None, "'cupy-cuda13x<15,>=14.2' numpy"),  # from an index
    ],
)
def test_the_command_installs_an_extra_from_where_the_program_was_installed(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never the bare name of this program, under which anyone may register another."""
    (tmp_path / "a checkout").mkdir()
    (tmp_path / "a checkout/pyproject.toml").touch()
    (tmp_path / "a.whl").touch()
    installed = tmp_path / "gemm_cache-0.0.0.dist-info"
    installed.mkdir()
    requires = ("click", "cupy-cuda13x<15,>=14.2; extra == 'gpu'", "numpy; extra == 'gpu'", "triton; extra == 'triton'")
    named = "".join(f"Requires-Dist: {one}\n" for one in requires)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.4\nName: gemm-cache\nVersion: 0.0.0\n{named}")
    if origin is not None:
        (installed / "direct_url.json").write_text(json.dumps(origin).replace("{0}", str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    assert how_to_install("gpu") == f"{pip()} install {command.format(tmp_path)}"


def test_no_text_installs_this_program_by_its_bare_name() -> None:
    """Anyone may register that name in an index."""
    folders = [ROOT / name for name in ("app", "pages", "cache_engine", "docs", "examples")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in (".md", ".py")]
    command = re.compile(r"pip install[^#`\n]* '?gemm-cache\b(?!.* @ )")
    lines = {
        file.name: file.read_text().splitlines() for file in (*files, ROOT / "README.md", ROOT / "docs/Dockerfile")
    }
    assert [(name, line) for name, text in lines.items() for line in text if command.search(line)] == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_installs_what_its_message_promises(extra: str) -> None:
    """Each module that is looked for comes from a package that the extra names."""
    packages = {**metadata.packages_distributions(), "cupy": ["cupy-cuda12x", "cupy-cuda13x"]}  # one is here
    named = {re.split(r"[<>=\[]", each)[0] for each in PROJECT["optional-dependencies"][extra]}
    for module in EXTRAS[extra]:
        assert named & set(packages[module]), module


def test_all_is_every_extra_of_the_verbs() -> None:
    """But CUDA 12, another engine of a verb, is for those who ask for it."""
    verbs = [extra for extra in EXTRAS if extra != "cuda12"]
    assert PROJECT["optional-dependencies"]["all"] == [f"gemm-cache[{','.join(verbs)}]"]

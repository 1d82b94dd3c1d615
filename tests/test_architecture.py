"""The house as promised: imports one way, light to enter, files that fit in one sitting."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_imports_run_one_way() -> None:
    done = subprocess.run([Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_module_is_in_the_layers() -> None:
    """A new module must be given its place."""
    import tomllib

    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    placed = {name.strip() for layer in contract["layers"] for name in layer.split("|")}
    there = {
        f"cache_engine.{path.stem}"
        for path in (ROOT / "cache_engine").iterdir()
        if path.stem != "__init__" and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    assert there - placed == set()


def test_the_map_names_every_room() -> None:
    import cache_engine

    named = set(re.findall(r"``(\w+)``", (cache_engine.__doc__ or "").partition("The rooms")[2]))
    rooms = {
        path.stem
        for path in (ROOT / "cache_engine").iterdir()
        if path.stem not in {"__init__", "__main__"} and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    assert rooms - named == set()


@pytest.mark.parametrize(
    "statement",
    [
        "import cache_engine",
        "from cache_engine import open_cache",
        "from cache_engine import matmul",
        "import cache_engine.cli.main",
    ],
)
def test_entering_brings_in_nothing_heavy(statement: str) -> None:
    heavy = "{'cupy', 'duckdb', 'streamlit', 'pyarrow', 'pandas', 'numpy', 'triton', 'torch'}"
    code = f"{statement}\nimport sys\nprint({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_what_keeps_kernels_of_others_brings_in_no_reader_of_them() -> None:
    """Every process of Triton or CuPy imports it; to read what a kernel says of itself takes as long again."""
    code = (
        "import sys, cache_engine.adapters.shelf\n"
        "rooms = ('cache_engine.frameworks.', 'cache_engine.compilers')\n"
        "print(*(name for name in sys.modules if name.startswith(rooms)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["cache_engine.frameworks.bundles"], done.stderr


MOST_MODULES_OF_A_HIT = 60


def test_a_hit_brings_in_nothing_heavy(compiled_store: Path) -> None:
    heavy_ones = "{'cupy', 'duckdb', 'portalocker', 'subprocess', 'importlib.metadata', 'email', 'logging', 'shutil'}"
    code = (
        "import sys\nfrom cache_engine import GemmProblem, open_cache\n"
        "with open_cache(sys.argv[1]) as cache:\n"
        "    assert cache.get_or_compile(GemmProblem(128, 256, 192, arch='sm_90')).tier == 'disk'\n"
        f"print({heavy_ones} & set(sys.modules))\n"
        "print(*(name for name in sys.modules if name.startswith('cache_engine')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(compiled_store)], capture_output=True, text=True)
    heavy, ours = done.stdout.splitlines()
    assert heavy == "set()", done.stderr
    assert 20 < len(ours.split()) <= MOST_MODULES_OF_A_HIT, ours


MOST_LINES, MOST_LINES_OF_A_FUNCTION = 600, 50


def _sources() -> list[Path]:
    """All files of Python but the templates of kernels, which are compiled by others: a kernel is one function."""
    folders = ("cache_engine", "app", "pages", "benchmarks", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [path for path in files if ROOT / "cache_engine" / "kernels" / "templates" not in path.parents]


def test_files_fit_in_one_sitting() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in _sources()}
    assert len(lengths) > 400
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_functions_fit_on_one_screen() -> None:
    """Without decorators and docstring."""
    lengths = {
        f"{path.relative_to(ROOT)}::{node.name}": _lines_of(node)
        for path in _sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lengths) > 3000
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION} == {}


def _lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    said = first.end_lineno - first.lineno + 1 if docstring and first.end_lineno else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - said


def test_the_tree_in_the_docstring_is_that_of_the_errors() -> None:
    from cache_engine import errors

    defined = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    parents = {each.__name__: [parent.__name__ for parent in each.__bases__] for each in defined}
    assert parents.pop("GemmCacheError") == ["Exception"]
    assert _drawn_parents(errors.__doc__ or "") == parents
    assert len(parents) > 20


def _drawn_parents(text: str) -> dict[str, list[str]]:
    """The parents of each name of a tree drawn with box characters, four columns a level."""
    above, parents = ["GemmCacheError"], {}
    for indent, name in re.findall(r"^    ([│ ]*)[├└]── (\w+)", text, re.MULTILINE):
        assert len(indent) % 4 == 0, name
        del above[len(indent) // 4 + 1 :]
        assert name not in parents, f"{name} is drawn twice"
        parents[name] = [above[-1]]
        above.append(name)
    return parents


def test_nothing_names_the_workplace_or_an_address_to_install_from() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    marks = ("index" + "-url", "/sim" + "ple/", "find" + "-links")
    for name in filter(None, files):
        path = ROOT / name
        if path.suffix in {".png", ".gz"} or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not [mark for mark in marks if mark in text], name


def test_each_promise_of_the_docs_names_tests_that_are_run(request: pytest.FixtureRequest) -> None:
    """A test named in docs/records/promises.md is found by pytest, and no mark takes it out of every run."""
    text = (ROOT / "docs" / "records" / "promises.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for promise, tests in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert named, f"this promise names no test: {promise}"
        assert len(named) == tests.count("`") // 2, tests
        for file, name in named:
            assert name in _collected(request.session, ROOT / "tests" / file), f"{file}::{name} of: {promise}"


@functools.cache
def _collected(session: pytest.Session, path: Path) -> frozenset[str]:
    """The tests that ``make test`` or ``make soak`` runs of a file, by the names of their functions."""
    found = pytest.Module.from_parent(session, path=path).collect() if path.exists() else ()
    tests = (item for item in found if isinstance(item, pytest.Function))
    return frozenset(
        item.originalname for item in tests if not {"skip", "gpu"} & {mark.name for mark in item.iter_markers()}
    )

"""The examples and the snippets of the documents: run as people run them, and checked by a type checker."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cache_engine import open_cache
from tests.helpers import public_names

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
MODEL = ("--model", "Qwen3-0.6B", "--arch", "sm_90", "--most", "2")


def _environment(folder: Path, **more: str) -> dict[str, str]:
    """That of a user with an empty home and a store of their own."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {**os.environ, "HOME": str(home), "GEMM_CACHE_DIR": str(folder / "store"), **more}


def _run(name: str, *arguments: object, folder: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=_environment(folder, **more))
    assert done.returncode == code, done.stderr
    return done


def test_each_example_has_a_test_and_is_short() -> None:
    text = Path(__file__).read_text() + (ROOT / "tests" / "torch" / "test_missing.py").read_text()
    examples = sorted(EXAMPLES.glob("*.py"))
    assert len(examples) == 5
    for example in examples:
        assert f'"{example.name}"' in text
        assert len(example.read_text().splitlines()) <= 120


def test_a_linear_layer_asks_for_a_kernel_as_m_changes(tmp_path: Path) -> None:
    options = ("--inputs", 64, "--outputs", 96, "--arch", "sm_90", 1, 7, 1)
    first, second = (_run("linear_layer.py", *options, folder=tmp_path).stdout for _ in range(2))
    assert first.startswith("m = 1: compiled, ")
    assert "m = 7: memory, " in first
    assert "2 sizes, 1 kernels" in first
    assert second == first.replace("compiled", "disk")
    calls = re.findall(r"^  (gemm_\w+)<<<dim3\(\d+, 1, 1\), dim3\(\d+, 1, 1\), \d+>>>\((.*)\)$", first, re.MULTILINE)
    assert [arguments for _, arguments in calls] == ["a, b, c, m, alpha, beta, bias, workspace"] * 3
    with open_cache(tmp_path / "store", create=False) as cache:
        (record,) = cache.records()
        assert {entry for entry, _ in calls} == {record.name}
        assert f".entry {record.name}(".encode() in cache.section(record, "ptx")


def test_a_server_warms_at_its_start_and_then_never_compiles(tmp_path: Path) -> None:
    options = ("Qwen3-0.6B", "--arch", "sm_90", "--m", "1-16")
    first, second = (_run("warm_at_start.py", *options, folder=tmp_path).stdout for _ in range(2))
    assert re.search(r"^ready in [\d.]+ s: 5 compiled, 0 found$", first, re.MULTILINE)
    assert re.search(r"^ready in [\d.]+ s: 0 compiled, 5 found$", second, re.MULTILINE)
    for text in (first, second):
        assert len(re.findall("^(?:1|13) tokens, .* from (?:disk|memory)$", text, re.MULTILINE)) == 10
    more = _run("warm_at_start.py", *options, "--requests", 1, 8192, folder=tmp_path, code=1)
    assert "NotCached: no tier has " in more.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    cold = _run("warm_at_start.py", *options, folder=empty, code=1, GEMM_CACHE_ENABLE_JIT="0")
    assert "not ready: GemmProblem(1, " in cold.stderr


def test_a_job_makes_a_pack_and_a_machine_that_can_write_nothing_serves_it(tmp_path: Path) -> None:
    pack = tmp_path / "kernels.gemmpack"
    made = _run("packs_in_ci.py", "make", pack, "--store", tmp_path / "ci", *MODEL, folder=tmp_path)
    assert re.fullmatch(r"5 kernels in .*kernels\.gemmpack\n", made.stdout)
    served = tmp_path / "served"
    served.mkdir()
    assert _run("packs_in_ci.py", "check", pack, *MODEL, folder=served).stdout == "10 hits, 0 missing\n"
    assert [path.name for path in served.rglob("*")] == ["home"], "nothing is written"
    more = _run("packs_in_ci.py", "check", pack, *MODEL[:-1], 100, folder=served, code=1)
    assert "compiling is switched off" in more.stderr


# ---- The exporter ----


@pytest.fixture
def exporter(compiled_store: Path, tmp_path: Path) -> Iterator[str]:
    """The address of one that serves."""
    command = [sys.executable, str(EXAMPLES / "prometheus_exporter.py"), "--store", str(compiled_store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment(tmp_path)) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def _values(text: str) -> dict[str, float]:
    """What Prometheus' own parser reads, by name and labels."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type in {"counter", "gauge"} for family in families)
    assert len(families) == text.count("# TYPE ")
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_is_served_is_the_statistics_in_seconds_and_bytes(exporter: str, compiled_store: Path) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", exporter)
    with urllib.request.urlopen(exporter) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        values = _values(answer.read().decode())
    with open_cache(compiled_store, create=False) as cache:
        statistics = cache.stats()
        assert values["gemm_cache_entries"] == statistics.entries == 4
        assert values["gemm_cache_stored_bytes"] == statistics.stored_bytes
        assert values["gemm_cache_hits_total memory"] == statistics.totals.hits["memory"] == 1
        assert values["gemm_cache_misses_total"] == values["gemm_cache_compiles_total"] == 4
        assert values["gemm_cache_compile_seconds_total"] == pytest.approx(statistics.totals.compile_us / 1e6)
        record = next(iter(cache.records()))
        cache.get_or_compile(record.problem.on(record.arch))
    with urllib.request.urlopen(exporter) as answer:
        assert _values(answer.read().decode())["gemm_cache_hits_total disk"] == 1, "of another process"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(exporter.replace("metrics", "else"))


def test_the_file_is_the_statistics_and_appears_whole(compiled_store: Path, tmp_path: Path) -> None:
    file = tmp_path / "gemm_cache.prom"
    for _ in range(2):
        _run("prometheus_exporter.py", "--store", compiled_store, "--file", file, folder=tmp_path)
        assert _values(file.read_text())["gemm_cache_entries"] == 4
    assert [path.name for path in tmp_path.iterdir() if "prom" in path.name] == ["gemm_cache.prom"]
    missing = _run("prometheus_exporter.py", "--store", tmp_path / "none", "--file", file, folder=tmp_path, code=1)
    assert missing.stderr.startswith("there is no store in ")


# ---- Types ----

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
GIVEN = {
    "gpu.md": "a b c out x weight v torch linear",
    "pytorch.md": "a b x weight bias model gemm torch codes weight_codes x_scales w_scales tokens experts counts "
    "my_cache",
}
"""Names that the snippets of a page take for granted."""


def _snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_what_a_page_shows_of_an_example_is_in_it() -> None:
    shown = [text for text in _snippets(ROOT / "docs" / "integration.md") if text.startswith("# ")]
    assert len({text.partition("\n")[0] for text in shown}) == 4
    for text in shown:
        name, _, lines = text.removeprefix("# ").partition("\n")
        assert lines in (ROOT / name).read_text()


def test_snippets_and_examples_import_only_what_is_public() -> None:
    """That is what ``docs/api.md`` lists, and the adapters that their frameworks call by their modules."""
    texts = {f"{page.name} {n}": text for page in PAGES for n, text in enumerate(_snippets(page))}
    texts |= {path.name: path.read_text() for path in EXAMPLES.glob("*.py")}
    imported = [
        (node.module or "", alias.name)
        for name, text in texts.items()
        if not text.startswith("# examples/")  # a part of one
        for node in ast.walk(ast.parse(text, name))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cache_engine")
        for alias in node.names
    ]
    assert len(imported) > 20
    ours = {f"{module}.{name}" for module, name in imported if not module.startswith("cache_engine.adapters.")}
    assert ours - set(public_names()) == set()


def test_no_document_for_users_names_a_module_that_may_change() -> None:
    """Except for their loggers, and modules that are run as programs."""
    pages = [page for page in PAGES if page.name not in {"contributing.md", "api.md", "settings.md", "README.md"}]
    named = [
        (page.name, name) for page in pages for name in re.findall(r"`(cache_engine\.\w+\.[\w.]+)", page.read_text())
    ]
    known = {
        ("framework-kernels.md", "cache_engine.adapters.triton"),
        ("caches.md", "cache_engine.frameworks.base.CacheReader"),
    }
    others = {(page, name) for page, name in named if name not in public_names()}
    assert others - known == {("troubleshooting.md", "cache_engine.errors")} & others


def test_every_snippet_of_the_documents_type_checks(tmp_path: Path) -> None:
    """With the settings and the cache of ``make lint``, so that only the snippets are read."""
    snippets = []
    for page in PAGES:
        given = "".join(f"{name}: Any\n" for name in GIVEN.get(page.name, "").split())
        for number, text in enumerate(_snippets(page)):
            if text.startswith("# examples/"):
                continue
            path = tmp_path / f"{page.stem.replace('-', '_')}_{number}.py"
            path.write_text(f"from typing import Any\n{given}{text}")
            snippets.append(str(path))
    assert len(snippets) >= 4
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *snippets]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout

"""Solutions for FlashInfer-Bench: what they are for, and that its own models would read them.

The contract is recorded from flashinfer-bench 0.1.2, whose ``Solution``, ``TraceSet`` and ``apply`` read and ran these
files on a CPU: fields of ``flashinfer_bench/data/solution.py``, each with whether it must be there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.insight.packs import write_solutions
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.gemm import GemmProblem
from tests.cli.test_cli import document, run

SOLUTION = {
    "name": True, "definition": True, "author": True, "spec": True, "sources": True, "description": False,
}  # fmt: skip
SPEC = {
    "language": True, "target_hardware": True, "entry_point": True, "dependencies": False,
    "destination_passing_style": False, "binding": False,
}  # fmt: skip
SOURCE = {"path": True, "content": True}
LANGUAGES = {"python", "triton", "cpp", "cuda", "tilelang"}


def written(dataset: Path) -> dict[str, dict[str, Any]]:
    """The solutions of a dataset, by the definition they are for; each is as the contract says."""
    found = {}
    for path in sorted((dataset / "solutions").rglob("*.json")):
        one = json.loads(path.read_bytes())
        spec, sources = one["spec"], one["sources"]
        for given, fields in ((one, SOLUTION), (spec, SPEC), *((source, SOURCE) for source in sources)):
            assert {name for name, required in fields.items() if required} <= set(given) <= set(fields)
            assert all(value for name, value in given.items() if fields[name])
        assert spec["language"] in LANGUAGES
        entry, function = spec["entry_point"].split("::")
        (source,) = (each["content"] for each in sources if each["path"] == entry)
        assert f"def {function}(A, B):" in source  # the inputs of a GEMM definition, by position
        assert spec["destination_passing_style"] is False
        assert path.relative_to(dataset).parts[:4] == ("solutions", one["author"], "gemm", one["definition"])
        compile(source, entry, "exec")
        assert one["definition"] not in found
        found[one["definition"]] = one
    assert len({one["name"] for one in found.values()}) == len(found)  # a second of a name is refused
    return found


def of(record: Record, m: int, n: int, k: int, **asked: Any) -> Record:
    """The record of a kernel for another problem."""
    return msgspec.structs.replace(record, problem=RecordedProblem.of(GemmProblem(m, n, k, **asked)))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Where a dataset can be: the store's files are above it."""
    return tmp_path / "dataset"


@pytest.fixture
def record(compiled_store: Path) -> Record:
    """Any kernel's."""
    from cache_engine.cache.cache import open_cache

    with open_cache(compiled_store) as cache:
        return next(iter(cache.records()))


def test_each_n_and_k_has_one_solution_for_every_m_and_both_types(record: Record, dataset: Path) -> None:
    records = [
        of(record, 8, 256, 64),
        of(record, 64, 256, 64),
        of(record, 8, 256, 64, dtype="fp16"),
        of(record, 1, 8, 16),
    ]
    files = write_solutions(dataset, records)
    assert sorted(written(dataset)) == ["gemm_n256_k64", "gemm_n8_k16"]
    before = [path.read_bytes() for path in files]
    assert write_solutions(dataset, reversed(records)) == files  # again: the same, and nothing further
    assert [path.read_bytes() for path in files] == before
    assert {path for path in dataset.rglob("*") if path.is_file()} == set(files)


@pytest.mark.parametrize(
    "asked",
    [
        {"layout": "nn"}, {"dtype": "fp32"}, {"out_dtype": "fp32"}, {"epilogue": "bias"}, {"epilogue": "gelu"},
        {"mode": "grouped", "batch": 4}, {"dtype": "fp8_e4m3", "scales": "1x128,128x128"},
    ],
)  # fmt: skip
def test_kernels_that_compute_something_else_have_none(record: Record, dataset: Path, asked: dict[str, Any]) -> None:
    assert write_solutions(dataset, [of(record, 8, 256, 128, **asked)]) == []


def test_the_verb_writes_those_of_the_store_and_leaves_the_dataset(compiled_store: Path, dataset: Path) -> None:
    other = dataset / "definitions" / "gemm" / "gemm_n1_k1.json"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    found = document("pack", "export", dataset, "--format", "flashinfer", store=compiled_store)
    assert [Path(path).stem for path in found["solutions"]] == [f"gemm_cache_{name}" for name in written(dataset)]
    assert found["missing"] == []
    assert other.read_text() == "{}"


def test_the_verb_writes_those_of_a_model(compiled_store: Path, dataset: Path) -> None:
    dataset.mkdir()
    table = dataset / "table.csv"
    table.write_text("n,k\n256,192\n512,64\n")
    asked = ("--format", "flashinfer", "--for", table, "--m", "128", "--arch", "sm_90")
    found = document("pack", "export", dataset, *asked, store=compiled_store, code=1)
    assert (list(written(dataset)), len(found["missing"])) == (["gemm_n256_k192"], 1)


@pytest.mark.parametrize(
    ("options", "why"),
    [(("--force",), "leave --force"), (("--arch", "sm_120"), "gemm-cache warm"), (("--sign", "key"), "leave --force")],
)
def test_what_the_verb_refuses(compiled_store: Path, dataset: Path, options: tuple[str, ...], why: str) -> None:
    refused = run("pack", "export", dataset, "--format", "flashinfer", *options, store=compiled_store)
    assert (refused.returncode, why in refused.stderr) == (2, True)
    assert not (dataset).exists()

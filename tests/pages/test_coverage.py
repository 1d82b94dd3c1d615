"""Coverage: a model's kernels by target, those that are missing, and the job that compiles them."""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path

import pytest

from app import context
from app.presenters.columns import rows_of
from app.presenters.coverage import (
    CACHED,
    MISSING,
    cell_colours,
    cell_text,
    covered_words,
    kernel_columns,
    kernels_of,
    matrix_table,
    missing_archs,
    with_missing,
)
from cache_engine.batch.jobs import Jobs
from cache_engine.cache.cache import Cache
from cache_engine.cli.main import commands
from cache_engine.evaluator.catalogue import ModelShape
from cache_engine.insight.coverage import Cell, coverage, wanted
from cache_engine.model.gemm import DType
from cache_engine.model.job import JobArguments
from tests.pages.opening import Open, frames, sound

SHAPES = [ModelShape("a model", "qkv", 1, 4096, 4096, 1), ModelShape("a model", "router", 8, 4096, 1024, 1)]


def test_the_matrix_is_that_of_the_address(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "coverage", model="Qwen3-0.6B", dtype="fp32", archs="sm_120"))
    matrix = frames(app)[0]
    assert list(matrix) == ["Operation", "n", "k", "Batch", "sm_120"]
    assert list(matrix["Operation"]) == ["qkv", "o", "gate+up", "down", "lm_head"]
    assert all(next(iter(cell)).startswith("✗ 0 of") for cell in matrix["sm_120"])
    assert set(frames(app)[1]["State"]) == {MISSING}


def test_targets_start_with_those_in_the_store_and_may_be_none(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "coverage"))
    assert app.multiselect[0].value == ["sm_75", "sm_80", "sm_90"]
    app.multiselect[0].set_value([]).run()
    assert "Select at least one target" in sound(app).info[0].value


def test_an_empty_store_shows_the_kernels_that_a_model_needs(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "empty", "coverage"))
    assert app.multiselect[0].value == ["sm_90"]
    assert any(text.value.startswith("0 of ") for text in app.text)


def test_compiling_the_missing_starts_a_job_and_leads_to_it(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is noted, not run: a whole model takes minutes. What it does is for the tests of ``warm``."""
    started: list[tuple[list[str], JobArguments | None]] = []
    really = Jobs.start

    def noting(jobs: Jobs, command: list[str], asked: JobArguments | None = None, *_: object) -> str:
        started.append((command, asked))
        job = really(jobs, ["compile", "64", "48", "80", "--dtype", "fp32", "--arch", "sm_75"])
        jobs._children[job].wait()
        return job

    monkeypatch.setattr(Jobs, "start", noting)
    app = sound(open_page(compiled_store, "coverage", model="Qwen3-0.6B", dtype="bf16", archs="sm_75"))
    assert "compile-missing" not in {button.key for button in app.button}, "bf16 needs sm_80: nothing to compile"
    app = sound(open_page(compiled_store, "coverage", model="Qwen3-0.6B", dtype="bf16", archs="sm_90"))
    before = " ".join(caption.value for caption in app.caption)
    app.button(key="compile-missing").click().run()
    ((command, asked),) = started
    parsed = commands.commands[command[0]].make_context("warm", command[1:]).params
    wanted = (("sm_90",), "bf16", (range(1, 8193),))
    assert (parsed["archs"], parsed["dtype"], parsed["ms"]) == wanted
    assert asked is not None
    assert (asked["model"], asked["arch"]) == ("Qwen3-0.6B", ["sm_90"]), "the Compile page shows what was asked"
    assert "s of compiling on this machine, predicted from 4 compiles in this store" in before
    (link,) = (link.proto for link in sound(app).get("page_link") if "job" in link.proto.label)
    (job,) = context.jobs()._children
    assert (link.page, link.query_string) == ("compile", f"job={job}")


@pytest.fixture
def _no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    from cache_engine.compilers import COMPILERS
    from cache_engine.errors import CompilerMissing

    def missing() -> object:
        raise CompilerMissing("NVRTC is not installed; pip install it")

    monkeypatch.setattr(COMPILERS["nvrtc"], "fingerprint", missing)


@pytest.mark.usefixtures("_no_nvrtc")
def test_a_missing_compiler_is_reported(open_page: Open, tmp_path: Path) -> None:
    app = open_page(tmp_path / "empty", "coverage")
    assert not app.exception
    assert [error.value for error in app.error] == ["Could not work out this model's kernels."]
    assert any("NVRTC is not installed" in text.value for text in app.text)


@pytest.mark.usefixtures("_no_nvrtc")
def test_without_the_compiler_coverage_uses_the_build_that_made_the_kernels(
    open_page: Open, compiled_store: Path
) -> None:
    """The records of the store name that build, so the keys are known."""
    app = sound(open_page(compiled_store, "coverage"))
    assert any(text.value.startswith("0 of ") for text in app.text)


@pytest.fixture
def cells(cache: Cache) -> list[list[Cell]]:
    return coverage(cache, wanted(SHAPES, DType.BF16, ["sm_75", "sm_90"]))


def test_a_cell_shows_a_mark_and_the_number_of_cached_kernels(cells: list[list[Cell]]) -> None:
    old, new = cells[0]
    keys = [kernel.key for kernel in new.kernels]
    assert len(keys) > 1
    assert cell_text(old, keys) == "– unsupported"
    assert [cell_text(new, cached) for cached in ((), keys[:1], keys)] == [
        f"✗ 0 of {len(keys)}",
        f"◐ 1 of {len(keys)}",
        f"✓ {len(keys)} of {len(keys)}",
    ]
    colours = cell_colours(cells, keys[:1])
    assert set(colours) == {cell_text(cell, keys[:1]) for row in cells for cell in row}
    assert len({colours[text] for text in (cell_text(old, keys), cell_text(new, keys[:1]))}) == 2


def test_the_rows_behind_the_matrix_match_its_counts(cells: list[list[Cell]]) -> None:
    flat = [cell for row in cells for cell in row]
    cached = {flat[1].kernels[0].key}
    rows = rows_of(kernels_of(flat, cached), kernel_columns(cached), UTC)
    assert [row["State"] for row in rows].count(CACHED) == 1
    assert [row["State"] for row in rows].count(MISSING) == sum(cell.missing(cached) for cell in flat)
    (kernel,) = [column for column in kernel_columns(cached) if column.name == "Kernel"]
    led = [kernel.value(one, UTC) for one in kernels_of(flat, cached)]
    key = flat[1].kernels[0].key
    assert [one for one in led if one] == [f"kernel?key={key}"], "only what is cached has a page"
    assert [row["Kernel"] for row in rows if row["State"] == CACHED] == [key[:12]]
    assert "needs sm_80 or newer" in rows[0]["State"]
    assert [row["Operation"] for row in matrix_table(cells, cached)] == ["qkv", "router"]


def test_each_missing_kernel_is_counted_once(cache: Cache) -> None:
    """Two operations of one shape share their kernels."""
    twice = coverage(cache, wanted([SHAPES[0], SHAPES[0]], DType.BF16, ["sm_90", "sm_75"]))
    kernels = len(twice[0][0].kernels)
    assert missing_archs(twice, ()) == {"sm_90": kernels}
    assert covered_words(twice, ()).startswith(f"0 of {kernels} kernels cached")
    assert missing_archs(twice, [kernel.key for kernel in twice[0][0].kernels]) == {}


def test_only_what_is_missing(cells: list[list[Cell]]) -> None:
    flat = [cell for row in cells for cell in row]
    of_first = [kernel.key for kernel in cells[0][1].kernels]
    assert with_missing(cells, of_first) == cells[1:]
    assert with_missing(cells, [kernel.key for cell in flat for kernel in cell.kernels]) == []
    rows = rows_of(kernels_of(flat, of_first, only_missing=True), kernel_columns(of_first), UTC)
    assert {row["State"] for row in rows} == {MISSING}
    assert len(rows) == sum(cell.missing(of_first) for cell in flat)


def test_the_switch_is_part_of_the_address(open_page: Open, compiled_store: Path) -> None:
    given = {"model": "Qwen3-0.6B", "dtype": "bf16", "archs": "sm_75"}
    assert len(frames(sound(open_page(compiled_store, "coverage", **given)))) == 2
    app = sound(open_page(compiled_store, "coverage", **given, missing="true"))
    assert app.toggle(key="missing").value
    assert not frames(app), "no kernel of it can be made for this target, so none is missing"
    assert "No kernel is missing" in app.success[0].value


def test_a_read_only_store_is_looked_at_and_nothing_can_be_compiled(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, root = os.access, str(compiled_store)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != root and access(path, mode))
    app = sound(open_page(compiled_store, "coverage", archs="sm_90"))
    assert app.button(key="compile-missing").disabled
    assert "Read-only store" in app.info[0].value
    for what in ("Single shape", "Whole model"):
        app = sound(open_page(compiled_store, "compile", what=what))
        assert [button.disabled for button in app.button if button.label.startswith("Compile")] == [True]
        assert "Read-only store" in app.info[0].value


def test_an_old_link_to_the_matrix_leads_here(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "architectures", model="Qwen3-0.6B", archs="sm_90"))
    assert app.title[0].value == "Workload"
    assert app.selectbox(key="model").value == "Qwen3-0.6B"

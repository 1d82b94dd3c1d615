"""Architectures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from app import context
from app.presenters.store.coverage import (
    CACHED,
    MISSING,
    cell_colours,
    cell_text,
    covered_words,
    kernel_rows,
    matrix_table,
    missing_archs,
)
from cache_engine.batch.jobs import Jobs
from cache_engine.catalogue import ModelShape
from cache_engine.cli.main import commands
from cache_engine.engine.cache import Cache, open_cache
from cache_engine.insight.coverage import Cell, coverage, wanted
from cache_engine.model.gemm import DType
from cache_engine.model.job import Asked
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_record
from tests.pages.opening import Open, sound

SHAPES = [ModelShape("a model", "qkv", 1, 4096, 4096, 1), ModelShape("a model", "router", 8, 4096, 1024, 1)]


def test_architectures_have_plots_and_a_table(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "architectures"))
    table = app.dataframe[0].value
    assert list(table["Target"]) == ["sm_75", "sm_80", "sm_90"]
    assert list(table["Kernels"]) == [1, 1, 2]
    assert list(table["Hits"]) == [0, 0, 1]
    assert list(table["Misses"]) == [1, 1, 2]
    assert list(table["Dtypes"]) == ["fp32", "bf16", "bf16, fp16"]
    assert list(table["Open"]) == [f"kernels?arch={arch}" for arch in table["Target"]]
    assert len(app.get("plotly_chart")) == 4
    toolchains = app.dataframe[1].value
    assert (list(toolchains["Kernels"]), list(toolchains["State"])) == ([4], ["✓ current"])


def test_two_toolchains_are_compared_on_request(open_page: Open, compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        for number, record in enumerate(cache.records()):
            changed = {"compiler_version": "13.6", "compiler_build": "ab" * 20}
            other = msgspec.structs.replace(
                record,
                key=f"{number:0>4}{record.key[4:]}",
                components=tuple((label, changed.get(label, value)) for label, value in record.components),
                compiler_version="13.6",
                resources=msgspec.structs.replace(record.resources, registers=255),
            )
            path = Path(cache.layout.record_path(CacheKey(other.key)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_record(other))
    app = sound(open_page(compiled_store, "architectures"))
    newer = next(each for each in app.selectbox(key="to-toolchain").options if "13.6" in each)
    older = next(each for each in app.selectbox(key="to-toolchain").options if "13.6" not in each)
    app.selectbox(key="from-toolchain").set_value(older)
    app.selectbox(key="to-toolchain").set_value(newer)
    app.button[0].click().run()
    figures, worse = sound(app).dataframe[2].value, app.dataframe[3].value
    assert dict(zip(figures["Figure"], figures["Worse"], strict=True))["Registers"] == 4
    assert set(worse["After"]) == {255}
    app.selectbox(key="from-toolchain").set_value(newer)
    app.button[0].click().run()
    assert "name two toolchains" in " ".join(each.value for each in (*app.error, *app.text))


def test_the_matrix_is_that_of_the_address(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "architectures", model="Qwen3-0.6B", dtype="fp32", archs="sm_120"))
    matrix = app.dataframe[2].value
    assert list(matrix) == ["Operation", "n", "k", "Batch", "sm_120"]
    assert list(matrix["Operation"]) == ["qkv", "o", "gate+up", "down", "lm_head"]
    assert all(next(iter(cell)).startswith("✗ 0 of") for cell in matrix["sm_120"])
    assert set(app.dataframe[3].value["State"]) == {MISSING}


def test_targets_start_with_those_in_the_store_and_may_be_none(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "architectures"))
    assert app.multiselect[0].value == ["sm_75", "sm_80", "sm_90"]
    app.multiselect[0].set_value([]).run()
    assert "Select at least one target" in sound(app).info[0].value


def test_an_empty_store_shows_the_kernels_that_a_model_needs(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "empty", "architectures"))
    assert "This store is empty" in app.info[0].value
    assert app.multiselect[0].value == ["sm_90"]
    assert any(text.value.startswith("0 of ") for text in app.text)


def test_compiling_the_missing_starts_a_job_and_leads_to_it(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is noted, not run: a whole model takes minutes. What it does is for the tests of ``warm``."""
    started: list[tuple[list[str], Asked | None]] = []
    really = Jobs.start

    def noting(jobs: Jobs, command: list[str], asked: Asked | None = None) -> str:
        started.append((command, asked))
        return really(jobs, ["stats"])

    monkeypatch.setattr(Jobs, "start", noting)
    app = sound(open_page(compiled_store, "architectures", model="Qwen3-0.6B", dtype="bf16", archs="sm_75"))
    assert app.button(key="compile-missing").disabled, "bf16 needs sm_80, so there is nothing to compile"
    app = sound(open_page(compiled_store, "architectures", model="Qwen3-0.6B", dtype="bf16", archs="sm_90"))
    app.button(key="compile-missing").click().run()
    ((command, asked),) = started
    parsed = commands.commands[command[0]].make_context("warm", command[1:]).params
    wanted = (("sm_90",), "bf16", (range(1, 8193),))
    assert (parsed["arch"], parsed["dtype"], parsed["ms"]) == wanted
    assert asked is not None
    assert (asked["model"], asked["arch"]) == ("Qwen3-0.6B", ["sm_90"]), "the Compile page shows what was asked"
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
    app = open_page(tmp_path / "empty", "architectures")
    assert not app.exception
    assert [error.value for error in app.error] == ["Could not work out this model's kernels."]
    assert any("NVRTC is not installed" in text.value for text in app.text)


@pytest.mark.usefixtures("_no_nvrtc")
def test_without_the_compiler_coverage_uses_the_build_that_made_the_kernels(
    open_page: Open, compiled_store: Path
) -> None:
    """The records of the store name that build, so the keys are known."""
    app = sound(open_page(compiled_store, "architectures"))
    assert list(app.dataframe[1].value["State"]) == ["? compiler not installed"]
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
    rows = kernel_rows(flat, cached)
    assert [row["State"] for row in rows].count(CACHED) == 1
    assert [row["State"] for row in rows].count(MISSING) == sum(cell.missing(cached) for cell in flat)
    assert [row["Open"] for row in rows if row["State"] == CACHED] == [f"kernel?key={flat[1].kernels[0].key}"]
    assert not any(row["Open"] for row in rows if row["State"] != CACHED)
    assert "needs sm_80 or newer" in rows[0]["State"]
    assert [row["Operation"] for row in matrix_table(cells, cached)] == ["qkv", "router"]


def test_each_missing_kernel_is_counted_once(cache: Cache) -> None:
    """Two operations of one shape share their kernels."""
    twice = coverage(cache, wanted([SHAPES[0], SHAPES[0]], DType.BF16, ["sm_90", "sm_75"]))
    kernels = len(twice[0][0].kernels)
    assert missing_archs(twice, ()) == {"sm_90": kernels}
    assert covered_words(twice, ()).startswith(f"0 of {kernels} kernels cached")
    assert missing_archs(twice, [kernel.key for kernel in twice[0][0].kernels]) == {}

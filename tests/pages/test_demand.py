"""The page Demand: what it shows of a store that was asked for a model, of an empty one, and of a hostile one."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from streamlit.testing.v1 import AppTest

from app.presenters.demand import main_kind
from cache_engine import GemmProblem, model_shapes, open_cache
from cache_engine.cache.demand.report import DemandReport, DemandShare
from cache_engine.frameworks.runs import keep_run
from cache_engine.frameworks.watch import NEW, Compiled, Framework, Run
from cache_engine.model.decision import EVICTION, MISS, Decision
from cache_engine.model.gemm import DType
from cache_engine.model.shape_counts import Shape, ShapeCounts
from cache_engine.store.disk import open_store
from cache_engine.store.journal import Journal, append_decisions
from cache_engine.store.layout import StoreLayout
from tests.pages.opening import Open, frames, sound, tables

HOSTILE = "<script>alert(1)</script> **bold** $x$"


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A store without kernels that was asked for those of a model, mostly with m = 16, and once long ago."""
    with open_cache(tmp_path / "asked") as cache:
        problems = [shape.problem(16, DType.BF16).on("sm_90") for shape in model_shapes("Llama-3.1-8B")]
        for problem in problems:
            for m in (16, 16, 16, 1, 3000):
                cache.journal.asked(replace(problem, m=m))
        old = Journal(cache.layout.journal, 3600.0, now=lambda: time.time() - 3 * 86_400)
        old.asked(GemmProblem(5, 8, 24, arch="sm_80"))
        old.close()
    return tmp_path / "asked"


def _words(app: AppTest) -> str:
    return "\n".join(str(one.value) for one in (*app.text, *app.caption, *app.info))


def _table(app: AppTest, *columns: str) -> list[tuple[object, ...]]:
    """The rows of the first table with these columns."""
    (frame, *_) = [one for one in frames(app) if set(columns) <= set(one.columns)]
    return list(frame[list(columns)].itertuples(index=False, name=None))


def test_a_run_is_shown_with_its_causes_and_what_was_not_watched(open_page: Open, tmp_path: Path) -> None:
    layout = open_store(tmp_path / "asked")
    late = Compiled("triton", HOSTILE, "a", "after", 105.0, {"compile": 1500.0})
    report = Run(
        command=["serve", HOSTILE], root="/kernels", started_at=100.0, ended_at=110.0, ready_at=104.0, exit_code=0,
        frameworks={"triton": Framework(3, 0, 1, 1.5)}, compiled=[late], not_watched=[HOSTILE],
    )  # fmt: skip
    keep_run(layout, report)
    app = sound(open_page(layout.root, "workload", part="Runs"))
    assert _table(app, "Before ready", "After ready", "Kernels", "Exit code") == [(0, 1, 3, 0)]
    assert _table(app, "Cause", "After ready") == [(NEW, 1)]
    assert [row[1:] for row in _table(app, "Kernel", "When", "Cause")] == [("after", NEW)]
    assert f"Not watched: {HOSTILE}" in _words(app)


def test_it_shows_shares_the_model_and_its_missing_kernels(open_page: Open, asked: Path) -> None:
    app = sound(open_page(asked, "demand"))
    shares = _table(app, "Name", "Launches", "GPU time", "Time from")
    assert len(shares) == 6
    assert sum(row[1] for row in shares) == pytest.approx(1)  # type: ignore[misc]
    assert {row[3] for row in shares} == {"predicted"}
    assert "sm_90: predicted for H100" in _words(app)
    assert "Most like Llama-3.1-8B: 5 of its 5 shapes were asked for" in _words(app)
    kernels = _table(app, "Operation", "Kernels", "Missing")
    assert [row[1] for row in kernels] == [row[2] for row in kernels]
    assert "A launch counts half as much after 168 hours." in _words(app)


def test_shares_that_take_too_long_are_not_added_up(
    open_page: Open, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_PAGE_LIMIT_S", "0")
    app = open_page(asked, "demand", by="Kernel")
    assert [error.value for error in app.error] == ["It took too long to add up the shares."]
    assert "A page searches for at most 0 s (setting page_limit_s). Choose a shorter time range" in _words(app)
    assert app.selectbox(key="shape").value


def test_the_last_hours_and_another_grouping_are_part_of_the_address(open_page: Open, asked: Path) -> None:
    app = sound(open_page(asked, "demand", span="24 hours", by="Target"))
    assert _table(app, "Name", "Launches") == [("sm_90", 1.0)]
    app = sound(open_page(asked, "demand", span="28 days", by="Target"))
    assert {row[0] for row in _table(app, "Name")} == {"sm_80", "sm_90"}
    app = sound(open_page(asked, "demand", by="Model"))
    assert _table(app, "Name", "Shapes")[0] == ("Llama-3.1-8B", "5 of 5")


def test_the_m_of_a_shape_have_times_and_the_kernels_that_serve_them(open_page: Open, asked: Path) -> None:
    shape = "m × 4096 × 14336 bf16 sm_90"
    app = sound(open_page(asked, "demand", span="24 hours", shape=shape))
    assert app.selectbox(key="shape").value == shape
    rows = _table(app, "m", "Launches", "Share", "Time from", "Stored")
    assert rows[0] == (16, 3.0, 0.6, "predicted", "no")
    assert {row[0] for row in rows} == {1, 16, 3000}


def test_kernels_that_are_stored_are_said_to_be(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "demand"))
    assert ("yes",) in _table(app, "Stored")


def test_what_was_evicted_and_asked_for_again_is_listed_however_much_came_after(open_page: Open, asked: Path) -> None:
    layout, key = StoreLayout(asked), "ab" * 32
    asked_again = [
        Decision(kind=EVICTION, at=1.7e9, key=key, reason=f"unused {HOSTILE}"),
        Decision(kind=MISS, at=1.7e9 + 500, key=key, name=f"gemm {HOSTILE}"),
    ]
    others = [Decision(kind=MISS, at=1.7e9 + 600, key=f"{number:064x}") for number in range(1500)]
    append_decisions(layout, [*asked_again, *asked_again, *others])
    app = sound(open_page(asked, "demand"))
    (row,) = _table(app, "Kernel", "Times", "Because")
    assert row[1:] == (2, f"unused {HOSTILE}")
    assert f"gemm {HOSTILE}" in [cell["text"] for told in tables(app) for cells in told["cells"] for cell in cells]


def test_a_store_that_was_asked_for_nothing_says_what_counts(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "empty", "demand"))
    assert "Nothing was asked for in this time" in app.info[0].value
    assert not app.selectbox


def test_a_model_is_of_the_type_in_which_it_computes_most_not_of_its_router() -> None:
    shapes = {"router": (Shape(n=8, k=4096, dtype="fp32"), 900.0, 1e9), "qkv": (Shape(n=6144, k=4096), 100.0, 1e12)}
    shares = tuple(
        DemandShare(name, shape, launches=launches, flops=flops) for name, (shape, launches, flops) in shapes.items()
    )
    report = DemandReport("shape", 0.0, 1.0, 1.0, DemandShare("all"), 0.0, shares)
    kind = main_kind(report, {(8, 4096), (6144, 4096)})
    assert kind is not None
    assert kind[0] == "bf16"
    assert main_kind(report, {(1, 1)}) is None


def test_hostile_shapes_are_only_ever_text(open_page: Open, tmp_path: Path) -> None:
    with open_cache(tmp_path / "store") as cache:
        shape = Shape(n=64, k=32, dtype=HOSTILE, arch=HOSTILE, epilogue=HOSTILE, layout=HOSTILE)
        line = msgspec.json.encode(ShapeCounts("use", time.time(), shape, {2**24: 2**53}))
        (cache.layout.journal / "0001-1-x.jsonl").write_bytes(line + b"\n")
    for by in ("Shape", "Kernel", "Model", "Target"):
        app = sound(open_page(tmp_path / "store", "demand", by=by))
        for one in (*app.markdown, *app.caption, *app.header, *app.info):
            assert HOSTILE not in one.value

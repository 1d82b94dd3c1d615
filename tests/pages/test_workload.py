"""Workload: the matrix of what is asked for or of a model, a cell of it, and the jobs of what is missing."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
import pytest
from streamlit.testing.v1 import AppTest

from app import context
from app.presenters import workload as shown
from app.presenters.forms import made_of, table_form
from cache_engine import GemmProblem, model_shapes, open_cache
from cache_engine.batch.jobs import Jobs
from cache_engine.cache.cache import Cache
from cache_engine.cache.demand import DemandShare
from cache_engine.cli.main import commands
from cache_engine.evaluator.catalogue import table_shapes
from cache_engine.frameworks.watch import NEW, Compiled, Framework, Run, keep_run
from cache_engine.insight.coverage import Covering, WorkCell, coverage, distinct, wanted
from cache_engine.model.decision import EVICTION, MISS, Decision
from cache_engine.model.events import CORRUPT, EVICT
from cache_engine.model.gemm import DType
from cache_engine.model.job import JobArguments
from cache_engine.model.shapes import Shape, ShapeCounts, parse_sizes
from cache_engine.store.disk import open_store
from cache_engine.store.journal import Journal, append_decisions
from cache_engine.store.layout import StoreLayout
from cache_engine.upkeep.plan import Limits
from tests.pages.opening import Open, frames, sound, tables

HOSTILE = "<script>alert(1)</script> **bold** $x$"
SHAPE = "m × 4096 × 14336 bf16"


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
    return "\n".join(str(one.value) for one in (*app.text, *app.caption, *app.info, *app.code))


def _table(app: AppTest, *columns: str) -> list[tuple[object, ...]]:
    """The rows of the first table with these columns."""
    (frame, *_) = [one for one in frames(app) if set(columns) <= set(one.columns)]
    return list(frame[list(columns)].itertuples(index=False, name=None))


def _matrix(app: AppTest) -> dict[tuple[str, str], dict[str, object]]:
    """The cells of the matrix, by shape and target."""
    told = next(one for one in tables(app) if one["label"] == "Shapes by target")
    names = [one["name"] for one in told["columns"]]
    return {
        (cells[names.index("Shape")]["text"], name): cell
        for cells in told["cells"]
        for name, cell in zip(names, cells, strict=True)
        if "href" in cell
    }


def _cell(states: shown.States, share: DemandShare | None, keys: tuple[str, ...], *, timed: bool = True) -> str:
    total = DemandShare("all", launches=10.0, timed=10.0 if timed else 0.0, gpu_s=1.0)
    cell = WorkCell(Shape(n=8, k=8, arch="sm_90"), tuple(map(_kernel, keys)), "too old", share)
    return shown.Matrix([[cell]], states, total, {}).text(cell)


def _kernel(key: str) -> Covering:
    return Covering(type("Selection", (), {"key": key})(), (range(1, 2),))


# ---- Asked for ----


def test_what_was_asked_for_is_a_matrix_with_shares_and_states(open_page: Open, asked: Path) -> None:
    app = sound(open_page(asked, "workload"))
    cells = _matrix(app)
    assert len(cells) == 6
    assert {target for _, target in cells} == {"sm_80", "sm_90"}
    shares = [float(str(cell["text"]).split("%")[0]) for cell in cells.values()]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert all("✗ 0 of" in str(cell["text"]) for cell in cells.values())
    assert max(float(str(cell["bar"])) for cell in cells.values()) == 1, "bars of one matrix have one scale"
    assert "(predicted)" in str(cells[SHAPE, "sm_90"]["title"])
    assert "Shares are of GPU time." in _words(app)
    assert "sm_90: predicted for H100" in _words(app)
    assert "A launch counts half after 168 hours." in _words(app)
    assert _table(app, "Model", "Shapes asked for")[0] == ("Llama-3.1-8B", "5 of 5")


def test_a_cell_leads_to_its_sizes_and_kernels_and_the_time_range_stays(open_page: Open, asked: Path) -> None:
    app = sound(open_page(asked, "workload", span="24 hours"))
    page, _, address = str(_matrix(app)[SHAPE, "sm_90"]["href"]).partition("?")
    assert page == "workload"
    assert parse_qs(address) == {"span": ["24 hours"], "shape": [SHAPE], "target": ["sm_90"]}
    app = sound(open_page(asked, "workload", **{name: value for name, (value,) in parse_qs(address).items()}))
    assert f"{SHAPE} sm_90" in _words(app)
    assert str(_matrix(app)[SHAPE, "sm_90"]["text"]).startswith("▸ ")
    rows = _table(app, "State", "m", "Launches", "Time")
    assert [(row[0], row[3]) for row in rows] == [(shown.MISSING, "predicted")] * len(rows)
    assert sorted(m for row in rows for m in str(row[1]).split(",")) == ["1", "16", "3000"]
    assert sum(float(str(row[2])) for row in rows) == pytest.approx(0.2), "of the launches of all five shapes"
    (link,) = (one.proto for one in app.get("page_link") if one.proto.label == "Open in Compile")
    assert parse_qs(link.query_string)["s_arch"] == ["sm_90"]


def test_a_link_of_an_older_version_names_the_target_within_the_shape(open_page: Open, asked: Path) -> None:
    app = sound(open_page(asked, "demand", shape=f"{SHAPE} sm_90"))
    assert next(header.value for header in app.header) == "Chosen cell"


def test_a_shape_that_the_matrix_does_not_have_is_said_and_never_echoed(open_page: Open, asked: Path) -> None:
    for name in (HOSTILE, "m" * 200, "\u202e\x00", ""):
        app = sound(open_page(asked, "workload", shape=name, target=HOSTILE))
        assert "does not have" in _words(app)
        assert HOSTILE not in "".join(one.value for one in (*app.markdown, *app.info, *app.header))


def test_shares_that_take_too_long_are_not_added_up(
    open_page: Open, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_PAGE_LIMIT_S", "0")
    app = open_page(asked, "demand")
    assert [error.value for error in app.error] == ["It took too long to add up the shares."]
    assert "A page searches for at most 0 s (setting page_limit_s). Choose a shorter time range" in _words(app)


def test_the_time_range_is_part_of_the_address(open_page: Open, asked: Path) -> None:
    assert {arch for _, arch in _matrix(sound(open_page(asked, "demand", span="24 hours")))} == {"sm_90"}
    assert {arch for _, arch in _matrix(sound(open_page(asked, "demand", span="28 days")))} == {"sm_80", "sm_90"}


def test_kernels_that_are_stored_are_said_to_be(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "demand"))
    assert any("✓ 1 of 1" in str(cell["text"]) for cell in _matrix(app).values())
    assert (shown.STORED,) in _table(sound(open_page(compiled_store, "demand", all="true")), "State")
    app = sound(open_page(compiled_store, "demand", missing="true"))
    assert "No kernel is missing" in app.success[0].value


def test_a_store_that_was_asked_for_nothing_says_what_counts(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "empty", "demand"))
    assert "Nothing was asked for in this time" in app.info[0].value
    assert not tables(app)


def test_only_the_shapes_with_the_most_demand_are_drawn_and_a_link_shows_any(open_page: Open, tmp_path: Path) -> None:
    with open_cache(tmp_path / "store") as cache:
        for number in range(80):
            for _ in range(100 - number):
                cache.journal.asked(GemmProblem(16, 8 * (number + 1), 64, dtype="fp32", arch="sm_90"))
    last = "m × 640 × 64 fp32"
    app = sound(open_page(tmp_path / "store", "workload", shape=last, target="sm_90"))
    assert len(_matrix(app)) == 60
    assert (last, "sm_90") not in _matrix(app)
    assert "The 60 shapes with the most demand, of 80" in _words(app)
    assert f"{last} sm_90" in _words(app)
    assert "Shares are of launches: no time is known of any." in _words(app), "the model of GPUs has no fp32"


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


def test_hostile_shapes_are_only_ever_text(open_page: Open, tmp_path: Path) -> None:
    with open_cache(tmp_path / "store") as cache:
        shape = Shape(n=64, k=32, dtype=HOSTILE, arch=HOSTILE, epilogue=HOSTILE, layout=HOSTILE)
        line = msgspec.json.encode(ShapeCounts("use", time.time(), shape, {2**24: 2**53}))
        (cache.layout.journal / "0001-1-x.jsonl").write_bytes(line + b"\n")
    app = sound(open_page(tmp_path / "store", "workload"))
    ((_, cell),) = _matrix(app).items()
    chosen = {name: value for name, (value,) in parse_qs(str(cell["href"]).partition("?")[2]).items()}
    below = sound(open_page(tmp_path / "store", "workload", **chosen))
    for one in (page for app in (app, below) for page in (*app.markdown, *app.caption, *app.header, *app.info)):
        assert HOSTILE not in one.value
    assert HOSTILE in _words(below)
    assert "compile-cell" not in {button.key for button in below.button}


# ---- Cells ----


def test_a_cell_says_its_share_and_how_many_of_its_kernels_are_stored() -> None:
    share = DemandShare("", launches=5.0, timed=5.0, launch_share=0.5, time_share=0.25)
    untimed = DemandShare("", launches=5.0, launch_share=0.5)
    assert _cell(shown.States(), share, ()) == "25.0% – no kernel"
    assert _cell(shown.States(), share, ("a", "b")) == "25.0% ✗ 0 of 2"
    assert _cell(shown.States(["a"]), share, ("a", "b")) == "25.0% ◐ 1 of 2"
    assert _cell(shown.States("ab"), None, ("a", "b")) == "✓ 2 of 2"
    assert _cell(shown.States("ab", {}, "b"), share, ("a", "b")) == "25.0% ✓ 2 of 2, 1 pinned"
    departed = {"a": EVICT, "b": CORRUPT}
    assert _cell(shown.States((), departed), share, ("a", "b")) == "25.0% ✗ 0 of 2, 1 evicted, 1 quarantined"
    assert _cell(shown.States(), untimed, ("a",)) == "✗ 0 of 1", "a time that is not known is not made up"
    assert _cell(shown.States(), untimed, ("a",), timed=False) == "50.0% ✗ 0 of 1", "no time at all: launches"


def test_a_kernel_that_was_evicted_is_said_to_be_evicted(open_page: Open, compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        problem = GemmProblem(16, 512, 256, dtype="fp32", arch="sm_80")
        kernel = cache.get_or_compile(problem)
        given = {"shape": "m × 512 × 256 fp32", "target": "sm_80"}

        def state(text: str) -> list[tuple[object, ...]]:
            cache.journal.flush()
            app = sound(open_page(compiled_store, "workload", **given))
            assert str(_matrix(app)[given["shape"], "sm_80"]["text"]).endswith(text)
            return _table(app, "State")[:1]

        cache.admin.pin(kernel.key)
        assert state("✓ 1 of 1, 1 pinned") == [(shown.PINNED,)]
        cache.admin.unpin(kernel.key)
        cache.admin.clean(Limits(keys=frozenset({kernel.key})))
        assert state("✗ 0 of 1, 1 evicted") == [(shown.EVICTED,)]


# ---- Of a model ----


def test_the_matrix_is_that_of_the_address(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "coverage", model="Qwen3-0.6B", dtype="fp32", archs="sm_120", all="true"))
    assert [row[0] for row in _table(app, "Operation", "Shape")] == ["qkv", "o", "gate+up", "down", "lm_head"]
    assert all(str(cell["text"]).startswith("✗ 0 of") for cell in _matrix(app).values())
    assert set(_table(app, "State")) == {(shown.MISSING,)}


def test_a_models_cells_have_the_shares_of_what_was_asked_for(open_page: Open, asked: Path) -> None:
    given = {"part": "Of a model", "model": "Llama-3.1-8B", "archs": "sm_90"}
    app = sound(open_page(asked, "workload", **given))
    cell = _matrix(app)[SHAPE, "sm_90"]
    assert "%" in str(cell["text"])
    assert parse_qs(str(cell["href"]).partition("?")[2])["model"] == ["Llama-3.1-8B"]
    app = sound(open_page(asked, "workload", **given, shape=SHAPE, target="sm_90"))
    rows = _table(app, "State", "m", "Launches")
    assert sum(float(str(row[2])) for row in rows if row[2] != "–") == pytest.approx(0.2, rel=0.05)


def test_targets_start_with_those_in_the_store_and_may_be_none(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "coverage"))
    assert app.multiselect[0].value == ["sm_75", "sm_80", "sm_90"]
    app.multiselect[0].set_value([]).run()
    assert "Select at least one target" in sound(app).info[0].value


def test_an_empty_store_shows_the_kernels_that_a_model_needs(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "empty", "coverage"))
    assert app.multiselect[0].value == ["sm_90"]
    assert any(text.value.startswith("0 of ") for text in app.text)
    assert "Nothing was asked for, so cells have no share." in _words(app)


def test_only_what_is_missing_is_part_of_the_address(open_page: Open, compiled_store: Path) -> None:
    given = {"model": "Qwen3-0.6B", "dtype": "bf16", "archs": "sm_75"}
    app = sound(open_page(compiled_store, "coverage", **given))
    assert all("– no kernel" in str(cell["text"]) for cell in _matrix(app).values())
    assert "needs sm_80 or newer" in str(_matrix(app).popitem()[1]["title"])
    app = sound(open_page(compiled_store, "coverage", **given, missing="true"))
    assert app.toggle(key="missing").value
    assert not _matrix_is_there(app), "no kernel of it can be made for this target, so none is missing"
    assert "No kernel is missing" in app.success[0].value


def _matrix_is_there(app: AppTest) -> bool:
    return any(one["label"] == "Shapes by target" for one in tables(app))


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
def test_without_the_compiler_the_build_that_made_the_kernels_is_used(open_page: Open, compiled_store: Path) -> None:
    """The records of the store name that build, so the keys are known."""
    app = sound(open_page(compiled_store, "coverage"))
    assert any(text.value.startswith("0 of ") for text in app.text)


@pytest.mark.usefixtures("_no_nvrtc")
def test_what_was_asked_for_is_shown_without_a_compiler_too(open_page: Open, asked: Path) -> None:
    app = sound(open_page(asked, "workload"))
    cell = _matrix(app)[SHAPE, "sm_90"]
    assert "– no kernel" in str(cell["text"])
    assert "NVRTC is not installed" in str(cell["title"])


# ---- Compiling what is missing ----


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], JobArguments, bytes]]:
    """The jobs that are started: noted, and a small one run instead, because a whole model takes minutes."""
    found: list[tuple[list[str], JobArguments, bytes]] = []
    really = Jobs.start

    def noting(jobs: Jobs, command: list[str], asked: JobArguments, given: bytes = b"") -> str:
        found.append((command, asked, given))
        job = really(jobs, ["compile", "64", "48", "80", "--dtype", "fp32", "--arch", "sm_75"])
        jobs._children[job].wait()
        return job

    monkeypatch.setattr(Jobs, "start", noting)
    return found


def test_compiling_all_that_a_model_misses_starts_a_job_and_leads_to_it(
    open_page: Open, compiled_store: Path, started: list[tuple[list[str], JobArguments, bytes]]
) -> None:
    app = sound(open_page(compiled_store, "coverage", model="Qwen3-0.6B", dtype="bf16", archs="sm_75"))
    assert "compile-missing" not in {button.key for button in app.button}, "bf16 needs sm_80: nothing to compile"
    app = sound(open_page(compiled_store, "coverage", model="Qwen3-0.6B", dtype="bf16", archs="sm_90"))
    before = " ".join(caption.value for caption in app.caption)
    app.button(key="compile-missing").click().run()
    ((command, asked, given),) = started
    parsed = commands.commands[command[0]].make_context("warm", command[1:]).params
    assert (parsed["archs"], parsed["dtype"], parsed["ms"]) == (("sm_90",), "bf16", (range(1, 8193),))
    assert (asked["model"], asked["arch"], given) == ("Qwen3-0.6B", ["sm_90"], b""), "the Compile page shows it"
    assert "s of compiling on this machine, predicted from 4 compiles in this store" in before
    (link,) = (link.proto for link in sound(app).get("page_link") if "job" in link.proto.label)
    (job,) = context.jobs()._children
    assert (link.page, link.query_string) == ("compile", f"job={job}")


def test_a_cell_has_a_job_of_just_its_missing_kernels(
    open_page: Open, asked: Path, started: list[tuple[list[str], JobArguments, bytes]]
) -> None:
    app = sound(open_page(asked, "workload", shape=SHAPE, target="sm_90"))
    app.button(key="compile-cell").click().run()
    ((command, values, table),) = started
    assert table.splitlines()[1].startswith(b"4096,14336,1,")
    assert (values["arch"], values["dtype"]) == (["sm_90"], "bf16")
    assert set(str(values["tokens"]).split(",")) <= {"1", "16", "3000"}
    assert "/dev/stdin" in command


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(16, 256, 128, arch="sm_90"),
        GemmProblem(16, 256, 128, dtype="fp16", out_dtype="fp32", layout="nn", epilogue="bias+relu", arch="sm_80"),
        GemmProblem(64, 256, 128, batch=4, arch="sm_90"),
        GemmProblem(64, 256, 128, batch=4, mode="grouped", arch="sm_90"),
        GemmProblem(64, 256, 128, batch=4, mode="masked", arch="sm_90"),
        GemmProblem(16, 256, 128, fast_math=True, opt_level=1, specialisation="exact", arch="sm_90"),
    ],
    ids=str,
)
def test_the_job_of_a_cell_makes_the_very_kernels_that_are_missing(cache: Cache, problem: GemmProblem) -> None:
    """The job's form and table describe the shape in other words than the key that a program asks for."""
    selection = cache.select(problem)
    missing = [Covering(selection, (range(problem.m, problem.m + 1),))]
    values, table = shown.shape_job(table_form("sm_90"), missing)
    shapes = table_shapes(Path("table.csv"), table)
    rows = wanted(shapes, archs=values["arch"], ms=parse_sizes(values["tokens"]), **made_of(values))
    assert [kernel.key for kernel in distinct(coverage(cache, rows))] == [selection.key]


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


def test_a_read_only_dashboard_starts_no_job_of_a_cell(
    open_page: Open, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_DASHBOARD_READ_ONLY", "yes")
    app = sound(open_page(asked, "workload", shape=SHAPE, target="sm_90"))
    assert app.button(key="compile-cell").disabled


def test_an_old_link_to_the_matrix_leads_here(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "coverage", model="Qwen3-0.6B", archs="sm_90"))
    assert app.title[0].value == "Workload"
    assert app.selectbox(key="model").value == "Qwen3-0.6B"


# ---- Runs ----


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

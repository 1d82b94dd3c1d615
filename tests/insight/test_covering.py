"""The kernels for a range of m, found at the turning points, are those that asking for every m finds.

Every timing here is invented: input for what chooses, not a measurement.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.history import History
from cache_engine.cache.selection import Selector
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.insight.coverage import Covering, cover
from cache_engine.kernels.select import FAMILIES, ranking
from cache_engine.model.architecture import ARCHITECTURES, architecture
from cache_engine.model.gemm import INPUT_DTYPES, DType, GemmProblem, Layout, Specialisation
from cache_engine.model.measurement import COST_MODEL, GIVEN, Measurement
from cache_engine.model.shapes import Sizes, parse_sizes
from cache_engine.store.timings import Timings
from tests.helpers import INVENTED_GPU, invented_timing, make_store

FEATURES = st.integers(1, 9000) | st.sampled_from([64, 2880, 4096, 14_336, 128_256])
RANGES = st.tuples(st.integers(1, 400) | st.integers(1, 40_000), st.integers(0, 400)).map(
    lambda drawn: (range(drawn[0], drawn[0] + drawn[1] + 1),)
)


def by_trying(selector: Selector, problem: GemmProblem, sizes: Sizes, family: str | None = None) -> dict[int, str]:
    """The key of each m, asked for one by one."""
    return {m: selector.select(replace(problem, m=m), family, None, None).key for ms in sizes for m in ms}


def served(found: tuple[Covering, ...]) -> dict[int, str]:
    """The key of each m as the kernels found say; each m must be served by one."""
    pairs = [(m, kernel.key) for kernel in found for ms in kernel.ms for m in ms]
    assert len({m for m, _ in pairs}) == len(pairs)
    assert len({kernel.key for kernel in found}) == len(found)
    for kernel in found:
        assert kernel.selection.problem.m == kernel.ms[0][0]
    return dict(pairs)


@settings(max_examples=120)
@given(
    n=FEATURES,
    k=st.integers(1, 20_000),
    batch=st.sampled_from([1, 1, 1, 8, 128]),
    dtype=st.sampled_from(INPUT_DTYPES),
    layout=st.sampled_from(Layout),
    arch=st.sampled_from(sorted(ARCHITECTURES)),
    specialisation=st.sampled_from([*[Specialisation.NK] * 3, *Specialisation]),
    family=st.sampled_from([None, None, *FAMILIES]),
    sizes=RANGES,
)
def test_the_kernels_of_a_range_are_those_that_trying_each_m_finds(
    n: int,
    k: int,
    batch: int,
    dtype: DType,
    layout: Layout,
    arch: str,
    specialisation: Specialisation,
    family: str | None,
    sizes: Sizes,
) -> None:
    assume(not family or FAMILIES[family].takes(GemmProblem(1, 1, 1)))
    named = [FAMILIES[family]] if family else [FAMILIES["tensor_core"], FAMILIES["simt"]]
    capability = architecture(arch).compute_capability
    problem = GemmProblem(1, n, k, batch=batch, dtype=dtype, layout=layout, arch=arch, specialisation=specialisation)
    able = [one for one in named if dtype in one.flops_per_clock and not one.problem_fault(problem)]
    assume(any(capability >= one.min_capability(dtype) for one in able))
    selector = Selector()
    found = cover(selector, problem, sizes, family)
    assert served(found) == by_trying(selector, problem, sizes, family)
    event(f"{specialisation}, {'more than one kernel' if len(found) > 1 else 'one kernel'}")


@st.composite
def _timings(draw: st.DrawFn, problem: GemmProblem) -> list[Measurement]:
    """Timings of some sizes, of a few configs each: verified or not, chosen or given, of two families."""
    made = []
    for m in draw(st.lists(st.integers(1, 300), min_size=1, max_size=5, unique=True)):
        measured = replace(problem, m=m)
        for family, compiler in (("tensor_core", "nvrtc"), ("simt", "nvrtc"), ("triton", "triton")):
            for _, config in ranking(measured, family)[: draw(st.integers(0, 2))]:
                made.append(
                    invented_timing(
                        measured,
                        config,
                        draw(st.floats(1.0, 100.0)),
                        family=family,
                        compiler=compiler,
                        config_from=draw(st.sampled_from([COST_MODEL, COST_MODEL, GIVEN])),
                        verified=draw(st.sampled_from([True, True, False])),
                    )
                )
    return made


@settings(max_examples=25)
@given(data=st.data())
def test_measured_history_turns_where_trying_each_m_turns(data: st.DataObject) -> None:
    problem = GemmProblem(
        1,
        data.draw(st.sampled_from([64, 512, 4096])),
        data.draw(st.sampled_from([96, 4096])),
        dtype=DType.FP16,
        layout=data.draw(st.sampled_from([Layout.NT, Layout.TN])),
        arch="sm_90",
        specialisation=data.draw(st.sampled_from([*[Specialisation.NK] * 5, *Specialisation])),
    )
    with tempfile.TemporaryDirectory() as folder:
        timings = Timings(make_store(Path(folder)).layout, durable=False, lock_timeout_s=5.0)
        timings.add(data.draw(_timings(problem)))
        selector = Selector(history=History(lambda: timings, INVENTED_GPU.name))
        sizes = (range(1, 651),)
        found = cover(selector, problem, sizes)
        assert served(found) == by_trying(selector, problem, sizes)
        measured = {kernel.selection.config_from.partition(" on ")[0] for kernel in found}
        event(" and ".join(sorted(measured)))


def test_lists_and_ranges_are_served_together(cache: Cache) -> None:
    problem = GemmProblem(1, 4096, 4096, layout=Layout.TN, arch="sm_90")
    sizes = parse_sizes("1,16,64-80,5000-5100")
    wanted = {m: cache.select(replace(problem, m=m)).key for ms in sizes for m in ms}
    assert served(cover(cache.selector, problem, sizes)) == wanted


def test_a_range_needs_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Selections are what takes time, so their number is bounded: not one for each m."""
    selector = Selector()
    asked: list[int] = []
    really = Selector.select

    def counting(self: Selector, problem: GemmProblem, *choice: object) -> object:
        asked.append(problem.m)
        return really(self, problem, *choice)  # type: ignore[arg-type]

    monkeypatch.setattr(Selector, "select", counting)
    for shape in model_shapes("Llama-3.1-8B"):
        asked.clear()
        found = cover(selector, shape.problem(1, DType.BF16).on("sm_90a"), (range(1, 8193),))
        assert len(found) <= len(asked) < 200


@pytest.fixture(scope="module")
def selecting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    with open_cache(tmp_path_factory.mktemp("selecting") / "store") as opened:
        yield opened


@pytest.mark.soak
@pytest.mark.parametrize("layout", [Layout.NT, Layout.TN])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V3"])
def test_a_models_whole_range_is_that_of_trying_each_m(selecting: Cache, model: str, arch: str, layout: Layout) -> None:
    for shape in model_shapes(model):
        problem = replace(shape.problem(1, DType.BF16), arch=arch, layout=layout, epilogue=shape.epilogue)
        sizes = (range(1, 8193),)
        assert served(cover(selecting.selector, problem, sizes)) == by_trying(selecting.selector, problem, sizes)

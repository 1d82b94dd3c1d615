"""The policies that a replay compares, by name, and what each compiles before the server is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.replay.budget import Option, within_budget
from benchmarks.replay.kernels import Floats, Kernels, Places
from benchmarks.replay.machines import Adaptive, Compiling, Counting, Fixed, Kernel, Renting
from cache_engine.model.gemm import bucket_of
from cache_engine.usage.demand import Sketch

CAPTURE_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""vLLM's default ``cudagraph_capture_sizes``; a larger batch runs without a graph, with kernels for any m."""

_PER_OCTAVE = 8


@dataclass(frozen=True, slots=True)
class Start:
    """The state in which a server starts.

    Attributes:
        stored: kernels that are in the store.
        profile: what was asked for before, as the ledger has it; ``None`` when nothing is known.
        horizon_s: without a profile, the GPU seconds that kernels compiled ahead are expected to serve, and how long
            the rates seen are expected to go on.
        budget_s: seconds of compiling before the server is ready.
    """

    stored: frozenset[Kernel] = frozenset()
    profile: Sketch | None = None
    horizon_s: float = 86_400.0
    budget_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy.

    Attributes:
        name: as the command line has it.
        like: what is known to work like this, and in a few words how.
        learns: whether it uses a profile.
    """

    name: str
    like: str
    machine: Callable[[Kernels, Compiling, Start], Fixed | Adaptive]
    learns: bool = False


def _exact(kernels: Kernels, compiling: Compiling, start: Start) -> Fixed:
    each = np.arange(kernels.most + 1)
    rows = [each.chosen for each in kernels.operations]
    return Fixed(kernels, [each for _ in rows], rows, _chosen_s(kernels), compiling, stored=start.stored)


def _warm(kernels: Kernels, compiling: Compiling, start: Start) -> Fixed:
    keys = [each.chosen for each in kernels.operations]
    return Fixed(kernels, keys, keys, _chosen_s(kernels), compiling, _all(keys), start.stored)


def _warm_best(kernels: Kernels, compiling: Compiling, start: Start) -> Adaptive:
    return Adaptive(kernels, compiling, _all(each.best for each in kernels.operations), start.stored)


def _capture(kernels: Kernels, compiling: Compiling, start: Start) -> Fixed:
    sizes = np.array([size for size in CAPTURE_SIZES if size <= kernels.most])
    asked = np.arange(kernels.most + 1)
    padded = np.where(asked <= sizes[-1], sizes[np.minimum(np.searchsorted(sizes, asked), len(sizes) - 1)], 0)
    seconds = np.sum([each.seconds[each.dynamic] for each in kernels.operations], axis=0)
    captured = padded > 0
    seconds[captured] = _chosen_s(kernels)[padded[captured]]
    keys = [padded for _ in kernels.operations]
    dynamic = {(place, 0) for place in range(len(keys))}
    rows = [np.where(captured, each.chosen[padded], each.dynamic) for each in kernels.operations]
    return Fixed(kernels, keys, rows, seconds, compiling, _all(keys) - dynamic, start.stored, floor=dynamic)


def _powers(kernels: Kernels, compiling: Compiling, start: Start) -> Fixed:
    buckets = np.array([0, *(bucket_of(m) for m in range(1, kernels.most + 1))])
    seconds = np.sum([_picked(each.seconds, each.bucketed) for each in kernels.operations], axis=0)
    keys = [buckets for _ in kernels.operations]
    rows = [each.bucketed for each in kernels.operations]
    return Fixed(kernels, keys, rows, seconds, compiling, _all(keys), start.stored)


def _counts(kernels: Kernels, compiling: Compiling, start: Start) -> Adaptive:
    return Counting(kernels, compiling, stored=start.stored)


def _ours(kernels: Kernels, compiling: Compiling, start: Start) -> Adaptive:
    # With a profile, what it makes worth its price is compiled already: it forecasts nothing for the rest.
    expected_s = start.horizon_s if start.profile is None else 0.0
    return Renting(kernels, compiling, ahead(kernels, compiling, start), start.stored, expected_s)


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("exact", "Triton with m in its key: a kernel for each m, compiled while the request waits", _exact),
        Policy("warm", "SGLang: every kernel of the selector for every m, before the server is ready", _warm),
        Policy("warm-best", "as warm, with the kernels that the GPU model predicts to be the fastest", _warm_best),
        Policy("capture", "vLLM: a kernel for each of its capture sizes before, and one for any larger m", _capture),
        Policy("powers", "FlashInfer: a kernel for each power of two, before the server is ready", _powers),
        Policy("counts", "V8: compiled behind after 400 launches of an m, the best kernel after 3,000", _counts),
        Policy("ours", "compiled ahead by expected gain under a budget, then behind by ski rental", _ours, True),
    )
}
"""All but the oracle, which needs the stream that it serves."""


def ahead(kernels: Kernels, compiling: Compiling, start: Start) -> list[Kernel]:
    """The kernels worth compiling before the server is ready: a knapsack over what is expected to be asked for.

    With a profile that is the profile. Without, every octave of m is expected to take as many GPU seconds as any other,
    ``horizon_s`` in all: a prior that knows nothing of m but its bounds.
    """
    expected = _prior(kernels, start.horizon_s) if start.profile is None else _known(kernels, start.profile)
    options = []
    for place, operation in enumerate(kernels.operations):
        stored = [kernel for of, kernel in start.stored if of == place]
        present = operation.seconds[[operation.dynamic, *stored]].min(axis=0)
        for kernel in range(len(operation.tiles)):
            gains = {(place, m): steps * float(present[m] - operation.seconds[kernel, m]) for m, steps in expected}
            options.append(Option((place, kernel), compiling.price_s, {at: s for at, s in gains.items() if s > 0}))
    chosen = within_budget(options, start.budget_s * compiling.slots * compiling.gpu_s_per_s, least_gain=1.0)
    return [(place, kernel) for place, kernel in (option.name for option in chosen)]


def _prior(kernels: Kernels, horizon_s: float) -> list[tuple[int, float]]:
    octaves = (kernels.most).bit_length() * _PER_OCTAVE
    sizes = sorted({m for power in range(octaves) if (m := round(2 ** (power / _PER_OCTAVE))) <= kernels.most})
    ideal_s = kernels.ideal_s
    return [(m, horizon_s / len(sizes) / float(ideal_s[m])) for m in sizes]


def _known(kernels: Kernels, profile: Sketch) -> list[tuple[int, float]]:
    return [(min(m, kernels.most), steps) for m, steps in profile.spread()]


def _chosen_s(kernels: Kernels) -> Floats:
    """By m, a step with the selector's kernels."""
    seconds: Floats = np.sum([_picked(each.seconds, each.chosen) for each in kernels.operations], axis=0)
    return seconds


def _picked(seconds: Floats, rows: Places) -> Floats:
    """From each column the row that is picked."""
    picked: Floats = seconds[rows, np.arange(len(rows))]
    return picked


def _all(keys: Iterable[Places]) -> set[Kernel]:
    """Every kernel that some m needs."""
    return {(place, key) for place, of in enumerate(keys) for key in np.unique(of[1:]).tolist()}

"""Predicts the compile time of a kernel from the compiles recorded in a store.

Least squares fits the logarithm of compile_ms to properties of the kernel, with a ridge penalty: with few records,
predictions are near published figures, with many near the store's own times. A prediction is for one compile in a
process whose compiler is loaded, on a machine as busy as when the records were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import exp, log, log2
from statistics import median

from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.kernel import KernelConfig

MOST_RECORDS = 1000
"""The largest number of records that are used: the first by key, which is a random sample because keys are hashes."""

PUBLISHED_S = {"nvrtc": 0.161, "nvcc": 0.370, "triton": 0.517}
"""The seconds of a compile, by compiler: medians of ``make bench`` for the kernels in docs/performance.md."""
PUBLISHED = "docs/performance.md: NVRTC 13.5, NVCC 13.5 and Triton 3.9 on 2 cores of x86-64, 2026-11-21"

PENALTY = 0.3
FOLDS = 5
# The most features: fitting takes time as the cube of their number, and a pack may name any family, target or epilogue.
_MOST_FEATURES = 100
_LONGEST_EPILOGUE = 200  # letters
# With fewer records an error would say little.
_LEAST_FOR_ERROR = 2 * FOLDS
# The factor by which a compile time may differ from the published one, because of the machine and the kernel. A larger
# difference is not a compile: the machine was suspended, or its clock was set.
_FARTHEST = 100.0

_Weights = dict[str, float]


@dataclass(frozen=True, slots=True)
class Compile:
    """The properties of a kernel from which its compile time is predicted."""

    family: str
    compiler: str
    arch: str
    problem: RecordedProblem
    config: KernelConfig

    @classmethod
    def of(cls, record: Record) -> Compile:
        """The properties of the kernel of a record."""
        return cls(record.family, record.compiler, record.arch, record.problem, record.config)


@dataclass(frozen=True, slots=True)
class CompileTimes:
    """A model of compile time.

    Attributes:
        records: the number of compiles to which it was fitted.
        error: the median of abs(predicted / measured - 1) over these compiles; ``None`` for fewer than ten. Each is
            predicted by a model that was fitted to the four fifths of the records that do not contain it.
    """

    records: int
    error: float | None
    _weights: _Weights = field(default_factory=dict, repr=False)

    def seconds(self, kernel: Compile) -> float:
        """The predicted seconds of one compile.

        For a compiler without figures and records, the prediction is that for NVRTC.
        """
        return _published_s(kernel.compiler) * exp(_sum(self._weights, _features(kernel)))

    @property
    def in_words(self) -> str:
        """A text that says on how many compiles the prediction is based, and its median error."""
        if not self.records:
            return f"from published figures of another machine ({PUBLISHED})"
        compiles = f"from {self.records:,} compile{'s' if self.records != 1 else ''} in this store"
        return compiles if self.error is None else f"{compiles}; median error {self.error:.0%}"


def predicted_compile_seconds(
    kernels: Sequence[Compile], records: Iterable[Record]
) -> tuple[list[float], CompileTimes]:
    """The predicted seconds of each kernel, one compile at a time, and the model that predicts them.

    Args:
        records: the records of the store; the first ``MOST_RECORDS`` are read.
    """
    times = fitted(records)
    return [times.seconds(kernel) for kernel in kernels], times


def fitted(records: Iterable[Record]) -> CompileTimes:
    """A model fitted to records; without records, one with the published figures."""
    seen = _of_the_commonest([one for record in islice(records, MOST_RECORDS) if (one := _seen(record)) is not None])
    if not seen:
        return CompileTimes(0, None)
    folds = [_Sums() for _ in range(FOLDS)]
    for one in seen:
        folds[one.fold].add(one.features, one.target)
    error = None
    if len(seen) >= _LEAST_FOR_ERROR:
        off: list[float] = []
        for fold in range(FOLDS):
            weights = _weights(folds[:fold] + folds[fold + 1 :], [one for one in seen if one.fold != fold])
            off += [abs(exp(_sum(weights, one.features) - one.target) - 1) for one in seen if one.fold == fold]
        error = median(off)
    return CompileTimes(len(seen), error, _weights(folds, seen))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A measured compile; ``target`` is the logarithm of its time divided by the published time."""

    fold: int
    features: list[tuple[str, float]]
    published_s: float
    target: float


def _seen(record: Record) -> _Seen | None:
    kernel = Compile.of(record)
    published_s = _published_s(kernel.compiler)
    ratio = record.compile_ms / 1e3 / published_s
    if not 1 / _FARTHEST <= ratio <= _FARTHEST or len(kernel.problem.epilogue) > _LONGEST_EPILOGUE:
        return None
    return _Seen(int(record.key[:8], 16) % FOLDS, _features(kernel), published_s, log(ratio))


def _of_the_commonest(seen: list[_Seen]) -> list[_Seen]:
    """The same compiles; if together they have very many features, without their rarest features."""
    counts = Counter(name for one in seen for name, _ in one.features)
    if len(counts) <= _MOST_FEATURES:
        return seen
    kept = {name for name, _ in counts.most_common(_MOST_FEATURES)}
    return [replace(one, features=[feature for feature in one.features if feature[0] in kept]) for one in seen]


def _weights(parts: Sequence[_Sums], seen: Iterable[_Seen]) -> _Weights:
    """The weights of least squares, scaled so that the sum of predictions equals the sum of measured times.

    Unscaled, the sum of predictions would be smaller, because the exponential of a mean logarithm is less than the
    mean.
    """
    weights = _solved(parts)
    measured_s = predicted_s = 0.0
    for one in seen:
        measured_s += one.published_s * exp(one.target)
        predicted_s += one.published_s * exp(_sum(weights, one.features))
    return {**weights, "": weights[""] + log(measured_s / predicted_s)} if predicted_s else weights


def _published_s(compiler: str) -> float:
    return PUBLISHED_S.get(compiler, PUBLISHED_S["nvrtc"])


def _features(kernel: Compile) -> list[tuple[str, float]]:
    """The properties that make a compile longer, as pairs of a name and a number.

    The numbers are 0 for 32 x 32 elements of C a warp, four warps, three stages.
    """
    problem, config = kernel.problem, kernel.config
    warps = config.warps_m * config.warps_n
    area = log2(config.block_m * config.block_n / warps / 1024)
    features = [
        ("", 1.0),
        (f"{kernel.family} by {kernel.compiler}", 1.0),
        (f"for {kernel.arch}", 1.0),
        (f"of {problem.dtype}", 1.0),
        (problem.specialisation, 1.0),
        (f"-O{problem.opt_level}", 1.0),
        # The loops over a warp's part of C, and over the depth of a tile, are unrolled.
        ("area", area),
        ("depth", log2(config.block_k / 32)),
        ("warps", log2(warps / 4)),
        ("stages", log2(config.stages / 3)),
    ]
    if config.split_k > 1:
        features.append(("slices", 1.0))
    if problem.epilogue:
        # Its code is repeated for each element of C that a thread has: with gelu, it is most of the code.
        features.append(("finish", area))
        features += [(f"+{part}", 1.0) for part in problem.epilogue.split("+") if part]
    return features


def _sum(weights: _Weights, features: list[tuple[str, float]]) -> float:
    return sum(weights.get(name, 0.0) * value for name, value in features)


class _Sums:
    """The sums for least squares: of products of two features, and of a feature and the target."""

    def __init__(self) -> None:
        self.products: dict[tuple[str, str], float] = {}
        self.target: dict[str, float] = {}

    def add(self, features: list[tuple[str, float]], target: float) -> None:
        """Adds one measured compile to the sums."""
        for name, value in features:
            self.target[name] = self.target.get(name, 0.0) + value * target
            for other, its in features:
                self.products[name, other] = self.products.get((name, other), 0.0) + value * its


def _solved(parts: Sequence[_Sums]) -> _Weights:
    """The weights that minimise the squared error plus ``PENALTY`` times the squared weights, over all parts."""
    names = sorted({name for part in parts for name in part.target})
    rows = [
        [sum(part.products.get((name, other), 0.0) for part in parts) + PENALTY * (name == other) for other in names]
        + [sum(part.target.get(name, 0.0) for part in parts)]
        for name in names
    ]
    # The matrix is positive definite, so no pivot is 0 and rows need no exchange.
    for place, row in enumerate(rows):
        for below in rows[place + 1 :]:
            factor = below[place] / row[place]
            for column in range(place, len(row)):
                below[column] -= factor * row[column]
    weights: _Weights = {}
    for place in reversed(range(len(names))):
        known = sum(rows[place][column] * weights[names[column]] for column in range(place + 1, len(names)))
        weights[names[place]] = (rows[place][-1] - known) / rows[place][place]
    return weights

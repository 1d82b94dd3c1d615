"""The cost of one pass of a model on a chip: each of its matrix multiplications, and what they add up to.

Only products with weights count: attention scores, norms, communication and everything else is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue.layers import ALONE, Parallel
from cache_engine.evaluator.catalogue.tables import ModelShape
from cache_engine.evaluator.grouped import (
    GroupedProblem,
    Work,
    busiest,
    evaluate_work,
    grouped,
    predict_work,
    routed,
    zipf,
)
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem

if TYPE_CHECKING:
    from cache_engine.evaluator.chips import Gpu
    from cache_engine.evaluator.cost import Evaluation, SearchMode
    from cache_engine.evaluator.gpu import Prediction
    from cache_engine.evaluator.results import Evaluations

    Cost = Evaluation | Prediction

PREFILL, DECODE = PHASES = ("prefill", "decode")
ALTERNATIVES = {"fused": "separate", "separate": "fused", "expanded": "absorbed", "absorbed": "expanded"}
"""Ways of computing, each with the one that it replaces."""

HEAD = "lm_head"
ATTENTION, DENSE, EXPERTS, OTHER = "attention", "dense", "experts", "other"
_LAYERS = {DENSE: "dense layer", EXPERTS: "MoE layer"}


@dataclass(frozen=True, slots=True)
class Step:
    """The work of a model in one pass.

    Args:
        tokens: of all copies of the model together.
        phase: ``"prefill"`` or ``"decode"``, which decides between ways of computing.
        alternatives: ways of computing that replace the usual ones; names in ``ALTERNATIVES``.
        sequences: how many sequences a prefill has, each of which needs logits of its last token only; without, every
            token's logits are computed.
        skew: how unevenly tokens are spread over experts: the r-th most wanted gets 1 / r^skew of the first's.
        weights: how much each expert is asked for, in place of a skew.
        dtype: element type of A and B.
    """

    tokens: int
    phase: str = PREFILL
    alternatives: tuple[str, ...] = ()
    sequences: int | None = None
    skew: float = 0.0
    weights: tuple[float, ...] = ()
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise UsageError(f"unknown phase {self.phase!r}; use one of: {', '.join(PHASES)}")
        for name in self.alternatives:
            if name not in ALTERNATIVES:
                raise UsageError(f"unknown alternative {name!r}; use one of: {', '.join(ALTERNATIVES)}")
            if ALTERNATIVES[name] in self.alternatives:
                raise UsageError(f"{name} and {ALTERNATIVES[name]} exclude each other; choose one")

    def computes(self, shape: ModelShape) -> bool:
        """Whether a shape is part of the pass."""
        if shape.alternative in self.alternatives or not shape.alternative:
            return True
        if ALTERNATIVES.get(shape.alternative) in self.alternatives:
            return False
        return shape.alternative != "separate" and shape.phase in ("", self.phase)


@dataclass(frozen=True, slots=True)
class Operation:
    """One of a pass's matrix multiplications, on one chip.

    Attributes:
        work: one launch.
        calls: launches in a pass.
    """

    name: str
    work: Work
    calls: int

    @property
    def shape_text(self) -> str:
        """Sizes as ``"3–4 × 4096 × 7168"``."""
        work = self.work
        least = work.groups[-1][0] if isinstance(work, GroupedProblem) else work.m
        rows = f"{work.m}" if least == work.m else f"{least}–{work.m}"
        return f"{rows} × {work.n} × {work.k}"

    @property
    def part(self) -> str:
        """The part of the model that it belongs to: attention, dense or experts; the lm_head, or, of a table, other."""
        if self.name == HEAD:
            return HEAD
        if self.name.startswith("line "):
            return OTHER
        if self.name.removeprefix("dense ") in ("gate+up", "down"):
            return DENSE
        return EXPERTS if self.name.split(maxsplit=1)[0] in ("router", "shared", "expert") else ATTENTION


def peak_of(chip: Hardware | Gpu, dtype: str) -> float:
    """Operations per second of a chip at most; of an accelerator, at the rate of its clock."""
    return chip.peak_flops if isinstance(chip, Hardware) else chip.peak_of(dtype)


@dataclass(frozen=True, slots=True)
class Priced:
    """An operation with its cost on a chip."""

    operation: Operation
    chip: Hardware | Gpu
    cost: Cost

    @property
    def pass_us(self) -> float:
        """All its launches in a pass."""
        return self.cost.latency_us * self.operation.calls

    @property
    def flops(self) -> int:
        """Of all its launches."""
        return self.operation.work.flops * self.operation.calls

    @property
    def moved_bytes(self) -> int:
        """To and from DRAM, by all its launches; on a GPU each operand once."""
        moved = getattr(self.cost, "traffic_bytes", self.operation.work.moved_bytes)
        return int(moved) * self.operation.calls

    @property
    def rate(self) -> float:
        """Floating-point operations per second."""
        return self.operation.work.flops / (self.cost.latency_us * 1e-6)

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte, each operand moved once."""
        return self.operation.work.flops / self.operation.work.moved_bytes

    @property
    def peak(self) -> float:
        """Operations per second of the chip at most, of the operation's type."""
        return peak_of(self.chip, self.operation.work.dtype)

    @property
    def roof(self) -> float:
        """Operations per second at most, of an operation of this intensity."""
        return min(self.peak, self.chip.dram_bandwidth * self.intensity)

    @property
    def utilization(self) -> float:
        """Share of the chip's peak."""
        return self.rate / self.peak

    @property
    def bound_by(self) -> str:
        """The bound: computing or moving data, whichever takes longer; on a GPU, at its peak and bandwidth."""
        work = self.operation.work
        compute = getattr(self.cost, "compute_us", work.flops / peak_of(self.chip, work.dtype))
        memory = getattr(self.cost, "memory_us", work.moved_bytes / self.chip.dram_bandwidth)
        return "compute" if compute >= memory else "memory"


@dataclass(frozen=True, slots=True)
class ModelPass:
    """A pass of a model on a chip; every total is the sum of its rows."""

    chip: Hardware | Gpu
    tokens: int
    rows: tuple[Priced, ...]

    @property
    def predicted_by(self) -> str:
        """The evaluator and its version."""
        if isinstance(self.chip, Hardware):
            from cache_engine.evaluator.cost import EVALUATOR, MODEL_VERSION
        else:
            from cache_engine.evaluator.gpu import EVALUATOR, MODEL_VERSION
        return f"{EVALUATOR} {MODEL_VERSION}"

    @property
    def pass_us(self) -> float:
        """All operations, one after the other."""
        return sum(row.pass_us for row in self.rows)

    @property
    def flops(self) -> int:
        """Of all operations."""
        return sum(row.flops for row in self.rows)

    @property
    def moved_bytes(self) -> int:
        """Of all operations."""
        return sum(row.moved_bytes for row in self.rows)

    @property
    def utilization(self) -> float:
        """Share of the chip's peak, over the pass."""
        return self.flops / (self.pass_us * 1e-6 * peak_of(self.chip, self.rows[0].operation.work.dtype))

    def layers(self) -> dict[str, float]:
        """Microseconds of one layer, by kind of layer."""
        of_part: dict[str, float] = {}
        for row in self.rows:
            part = row.operation.part
            of_part[part] = of_part.get(part, 0.0) + row.cost.latency_us
        return {kind: of_part.get(ATTENTION, 0.0) + of_part[part] for part, kind in _LAYERS.items() if part in of_part}


def operations(shapes: Iterable[ModelShape], step: Step, parallel: Parallel = ALONE) -> list[Operation]:
    """The products that one chip computes in a pass; of chips with different experts, the one with the most rows.

    Args:
        shapes: of one chip, as ``layers_of`` makes them for the same ``parallel``.

    Raises:
        UsageError, InvalidProblem: when the step does not fit the model.
    """
    found = []
    for shape in filter(step.computes, shapes):
        work = _work(shape, step, parallel)
        if work is not None:
            found.append(Operation(shape.operation, work, shape.layers))
    return found


def _work(shape: ModelShape, step: Step, parallel: Parallel) -> Work | None:
    if shape.experts and shape.m is None:
        return grouped(_expert_rows(shape, step), shape.n, shape.k, step.dtype)
    tokens = step.tokens
    if shape.operation == HEAD and step.phase == PREFILL and step.sequences is not None:
        tokens = min(tokens, step.sequences)
    m = -(-tokens // parallel.data) if shape.m is None else shape.m
    return EvaluationProblem(m, shape.n, shape.k, shape.batch, step.dtype)


def _expert_rows(shape: ModelShape, step: Step) -> Sequence[int]:
    """The rows of each expert of the busiest chip."""
    chips = shape.experts // shape.batch
    if step.weights:
        if len(step.weights) != shape.experts:
            raise UsageError(
                f"the counts are of {len(step.weights)} experts, and {shape.model} has {shape.experts} experts"
            )
        rows = routed(step.tokens, shape.experts_per_token, step.weights)
        return busiest(rows[first : first + shape.batch] for first in range(0, shape.experts, shape.batch))
    if not step.skew:  # what follows, without counting each expert's rows
        each, more = divmod(step.tokens * shape.experts_per_token, shape.experts)
        more = -(-more // chips)
        return [each + 1] * more + [each] * (shape.batch - more)
    # The most wanted are dealt to the chips in turn.
    rows = routed(step.tokens, shape.experts_per_token, zipf(shape.experts, step.skew))
    return busiest(rows[chip::chips] for chip in range(chips))


Ask = Callable[[Work, "Hardware | Gpu"], "Cost"]


def model_pass(operations: Iterable[Operation], chip: Hardware | Gpu, tokens: int, ask: Ask) -> ModelPass:
    """A pass on a chip; ``ask`` says what a launch costs."""
    rows = tuple(Priced(operation, chip, ask(operation.work, chip)) for operation in operations)
    return ModelPass(chip, tokens, rows)


def asking(
    kept: Evaluations | None,
    mode: SearchMode | None = None,
    *,
    stores: bool = True,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Ask:
    """A function that returns the cost of a launch: from stored results, else the evaluators. It asks each once.

    Args:
        kept: where results are looked up; grouped launches of unequal products are searched each time.
        stores: whether new results are stored there.
        may_go_on: as of the search.
    """
    known: dict[tuple[Work, Hardware | Gpu], Cost] = {}  # by all of a chip, as two may have one name

    def ask(work: Work, chip: Hardware | Gpu) -> Cost:
        at = work, chip
        found = known.get(at)
        if found is None:
            found = known[at] = _cost(work, chip)
        return found

    def _cost(work: Work, chip: Hardware | Gpu) -> Cost:
        if not isinstance(chip, Hardware):
            return predict_work(work, chip)
        if kept is not None and isinstance(work, EvaluationProblem):
            if stores:
                return kept.evaluate(work, chip, mode, may_go_on).evaluation
            stored = kept.look_up(work, chip, mode)
            if stored is not None:
                return stored.evaluation
        return evaluate_work(work, chip, mode, may_go_on)

    return ask

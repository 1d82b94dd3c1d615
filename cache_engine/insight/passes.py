"""The cost of one pass of a model on a chip: the cost of each of its matrix multiplications, and their sum.

Only products with weights are in it; attention scores, norms, communication and everything else are left out.
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
    work_of,
    zipf,
)
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem

if TYPE_CHECKING:
    from cache_engine.evaluator.chips import Gpu
    from cache_engine.evaluator.cost import Evaluation, SearchMode
    from cache_engine.evaluator.gpu import Prediction
    from cache_engine.evaluator.results import Evaluations
    from cache_engine.model.gemm import GemmProblem

    Cost = Evaluation | Prediction

PREFILL, DECODE = PHASES = ("prefill", "decode")
ALTERNATIVES = {"fused": "separate", "separate": "fused", "expanded": "absorbed", "absorbed": "expanded"}
"""Alternative ways of computing parts of a model: each way, and the way that it replaces."""

HEAD = "lm_head"
ATTENTION, DENSE, EXPERTS, OTHER = "attention", "dense", "experts", "other"
_LAYERS = {DENSE: "dense layer", EXPERTS: "MoE layer"}


@dataclass(frozen=True, slots=True)
class Step:
    """The work that a model does in one pass.

    Args:
        tokens: the number of tokens, for all copies of the model together.
        phase: ``"prefill"`` or ``"decode"``, which decides which way of computing is usual.
        alternatives: the ways of computing that replace the usual ones, by their names in ``ALTERNATIVES``.
        sequences: the number of sequences in a prefill; then only the logits of each sequence's last token are
            computed. Without it, the logits of every token are.
        skew: how unevenly tokens are spread over experts: the r-th most used expert gets 1 / r^skew of the tokens of
            the first.
        weights: the relative number of tokens of each expert, in place of ``skew``.
        dtype: the element type of A and B.
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
                raise UsageError(f"unknown mode {name!r}; use one of: {', '.join((*PHASES, *ALTERNATIVES))}")
            if ALTERNATIVES[name] in self.alternatives:
                raise UsageError(f"{name} and {ALTERNATIVES[name]} exclude each other; choose one")

    def computes(self, shape: ModelShape) -> bool:
        """Whether the pass computes this shape; false for a shape of a way of computing that is not used."""
        if shape.alternative in self.alternatives or not shape.alternative:
            return True
        if ALTERNATIVES.get(shape.alternative) in self.alternatives:
            return False
        return shape.alternative != "separate" and shape.phase in ("", self.phase)


@dataclass(frozen=True, slots=True)
class Operation:
    """One of a pass's matrix multiplications, on one chip.

    Attributes:
        work: the work of one launch.
        calls: the number of launches in a pass.
    """

    name: str
    work: Work
    calls: int

    @property
    def shape_text(self) -> str:
        """The sizes as text: ``"3–4 × 4096 × 7168"``."""
        work = self.work
        least = work.groups[-1][0] if isinstance(work, GroupedProblem) else work.m
        rows = f"{work.m}" if least == work.m else f"{least}–{work.m}"
        return f"{rows} × {work.n} × {work.k}"

    @property
    def part(self) -> str:
        """The part of the model: attention, dense, experts or lm_head; other if the shape comes from a table."""
        if self.name == HEAD:
            return HEAD
        if self.name.startswith("line "):
            return OTHER
        if self.name.removeprefix("dense ") in ("gate+up", "down"):
            return DENSE
        return EXPERTS if self.name.split(maxsplit=1)[0] in ("router", "shared", "expert") else ATTENTION


def peak_of(chip: Hardware | Gpu, dtype: str) -> float:
    """The peak operations per second of a chip; for an accelerator, at its clock."""
    return chip.peak_flops if isinstance(chip, Hardware) else chip.peak_of(dtype)


@dataclass(frozen=True, slots=True)
class Priced:
    """An operation with the cost of one launch on a chip."""

    operation: Operation
    chip: Hardware | Gpu
    cost: Cost

    @property
    def pass_us(self) -> float:
        """The microseconds that all launches of the operation take in a pass."""
        return self.cost.latency_us * self.operation.calls

    @property
    def flops(self) -> int:
        """The number of floating-point operations of all launches of the operation in a pass."""
        return self.operation.work.flops * self.operation.calls

    @property
    def moved_bytes(self) -> int:
        """Bytes that all launches of the operation move to and from DRAM; on a GPU, each operand is counted once."""
        moved = getattr(self.cost, "traffic_bytes", self.operation.work.moved_bytes)
        return int(moved) * self.operation.calls

    @property
    def rate(self) -> float:
        """The predicted floating-point operations per second of a launch."""
        return self.operation.work.flops / (self.cost.latency_us * 1e-6)

    @property
    def intensity(self) -> float:
        """The floating-point operations of a launch per byte, if each operand is moved once."""
        return self.operation.work.flops / self.operation.work.moved_bytes

    @property
    def peak(self) -> float:
        """The chip's peak operations per second for this element type."""
        return peak_of(self.chip, self.operation.work.dtype)

    @property
    def roof(self) -> float:
        """The most operations per second that the chip allows at this intensity (the roofline)."""
        return min(self.peak, self.chip.dram_bandwidth * self.intensity)

    @property
    def utilization(self) -> float:
        """The share of the chip's peak operations per second that a launch reaches."""
        return self.rate / self.peak

    @property
    def bound_by(self) -> str:
        """The bottleneck: computing or moving data, whichever takes longer.

        For a GPU, the two times are computed from its peak and its bandwidth.
        """
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
        """The name and version of the evaluator that predicted the pass."""
        if isinstance(self.chip, Hardware):
            from cache_engine.evaluator.cost import EVALUATOR, MODEL_VERSION
        else:
            from cache_engine.evaluator.gpu import EVALUATOR, MODEL_VERSION
        return f"{EVALUATOR} {MODEL_VERSION}"

    @property
    def pass_us(self) -> float:
        """The microseconds of the pass: all launches of all operations, one after the other."""
        return sum(row.pass_us for row in self.rows)

    @property
    def flops(self) -> int:
        """The number of floating-point operations of the pass."""
        return sum(row.flops for row in self.rows)

    @property
    def moved_bytes(self) -> int:
        """Bytes that the pass moves to and from DRAM."""
        return sum(row.moved_bytes for row in self.rows)

    @property
    def utilization(self) -> float:
        """The share of the chip's peak operations per second that the pass as a whole reaches."""
        return self.flops / (self.pass_us * 1e-6 * peak_of(self.chip, self.rows[0].operation.work.dtype))

    def layers(self) -> dict[str, float]:
        """The microseconds of one layer, by kind of layer."""
        of_part: dict[str, float] = {}
        for row in self.rows:
            part = row.operation.part
            of_part[part] = of_part.get(part, 0.0) + row.cost.latency_us
        return {kind: of_part.get(ATTENTION, 0.0) + of_part[part] for part, kind in _LAYERS.items() if part in of_part}


def operations(shapes: Iterable[ModelShape], step: Step, parallel: Parallel = ALONE) -> list[Operation]:
    """The products that one chip computes in a pass; if chips have different experts, the chip with the most rows.

    Args:
        shapes: the shapes of one chip, as ``layers_of`` returns them for the same ``parallel``.

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
    """The rows of each expert on the chip that has the most rows."""
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
    """The cost of a pass on a chip: for each operation the cost of a launch, as ``ask`` returns it, and the sums."""
    rows = tuple(Priced(operation, chip, ask(operation.work, chip)) for operation in operations)
    return ModelPass(chip, tokens, rows)


def asking(
    kept: Evaluations | None,
    mode: SearchMode | None = None,
    *,
    stores: bool = True,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Ask:
    """A function that returns the cost of a launch: from a stored result, else from an evaluator.

    Each launch is evaluated once.

    Args:
        kept: the stored results to look in. Grouped launches of unequal products are not stored and are searched each
            time.
        stores: whether to store new results in ``kept``.
        may_go_on: called during a search, which raises ``SearchStopped`` when it returns false.
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


def predicted(problem: GemmProblem) -> list[Priced]:
    """The GPU model's predictions for a kernel's problem, on each GPU of its target.

    Raises:
        InvalidProblem: where the model does not apply.
    """
    from cache_engine.evaluator.chips import gpus_of

    work = work_of(problem)
    return [
        Priced(Operation("predicted", work, 1), gpu, predict_work(work, gpu)) for gpu in gpus_of(problem.arch or "")
    ]

"""The return values of lookups, pruning and imports."""

from __future__ import annotations

from dataclasses import dataclass

from cache_engine.evaluator.cost import Evaluation
from cache_engine.model.outcome import Failure


@dataclass(frozen=True, slots=True)
class Older:
    """A stored result that is not used: of which version of the model it is, and what it says."""

    model_version: str
    latency_us: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, and its origin.

    Attributes:
        cached: whether it was stored before, rather than searched now.
        search_ms: how long the search took, now or then.
        unkept: why it could not be stored; ``None`` when it was, or will be.
        older: the stored result of another minor version of the model, which this one replaces; ``None`` without one.
    """

    key: str
    evaluation: Evaluation
    cached: bool
    search_ms: float
    unkept: Failure | None = None
    older: Older | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """A result that pruning removes, and why.

    Attributes:
        chip: the name of its accelerator; empty where the file does not say.
        last_used: seconds since 1970.
    """

    fingerprint: str
    key: str
    last_used: float
    reason: str
    chip: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of an import.

    Attributes:
        taken: results that were new.
        present: results that were stored already.
        refused: keys of the invalid ones, with the reason.
    """

    fingerprint: str
    taken: int
    present: int
    refused: tuple[tuple[str, str], ...]

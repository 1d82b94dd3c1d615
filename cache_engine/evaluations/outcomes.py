"""What comes back from asking for results, pruning them and importing them."""

from __future__ import annotations

from dataclasses import dataclass

from cache_engine.evaluator.cost import Evaluation


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, and where it is from.

    Attributes:
        cached: whether it was kept before, rather than searched for now.
        search_ms: how long searching took, now or then.
        unkept: why it could not be kept; empty when it was, or will be.
    """

    key: str
    evaluation: Evaluation
    cached: bool
    search_ms: float
    unkept: str = ""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A result that pruning takes out, and why."""

    fingerprint: str
    key: str
    last_used: float
    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    """What an import took in.

    Attributes:
        taken: results that were new.
        present: those that were there already.
        refused: keys of the invalid ones, with the reason.
    """

    fingerprint: str
    taken: int
    present: int
    refused: tuple[tuple[str, str], ...]

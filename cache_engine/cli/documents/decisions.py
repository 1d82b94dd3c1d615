"""The documents of the log of decisions and of pins."""

from __future__ import annotations

import msgspec

from cache_engine.model.decision import Decision


class DecisionRow(msgspec.Struct, kw_only=True):
    """A decision; see ``model.decision.Decision``. Texts that it has no use for are empty."""

    kind: str
    at: float
    key: str
    name: str
    reason: str
    detail: str
    runner_up: str
    margin: float | None
    by: str


class DecisionList(msgspec.Struct, kw_only=True):
    """What ``log`` prints.

    Attributes:
        total: how many decisions match; ``rows`` are the latest of them, the oldest first.
        damaged: how many lines of the log were skipped, because they are damaged or from the future.
    """

    total: int
    damaged: int
    rows: list[DecisionRow]


class Pins(msgspec.Struct, kw_only=True):
    """What ``pin`` and ``unpin`` print: the keys that they changed, and all that are pinned now."""

    changed: list[str]
    pinned: list[str]


def row_of(one: Decision) -> DecisionRow:
    """The row of a decision."""
    return DecisionRow(**{name: getattr(one, name) for name in DecisionRow.__struct_fields__})

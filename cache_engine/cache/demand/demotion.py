"""Demotion of kernels compiled ahead that are no longer worth their price, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cache_engine.model.decision import DEMOTION, PROMOTION, Decision
from cache_engine.usage.payback import stays_promoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cache_engine.store.journal import Journal
    from cache_engine.usage.payback import Payback


@dataclass(frozen=True, slots=True)
class Change:
    """A kernel in the store that is to be demoted, or promoted again.

    Attributes:
        kind: ``DEMOTION`` or ``PROMOTION``.
        key, name: which.
        forecast_s: what it is expected to save over the horizon, waiting included; GPU seconds and seconds.
        price_s: what compiling it again would cost; 0 where nothing is asked of it any more.
    """

    kind: str
    key: str
    name: str
    forecast_s: float
    price_s: float

    @property
    def reason(self) -> str:
        """The reason, in a few words."""
        return "saves less than half of its price" if self.kind == DEMOTION else "worth its price again"

    @property
    def detail(self) -> str:
        """The sum, in words."""
        if not self.price_s:
            return "nothing is expected to be saved"
        return f"{self.forecast_s:.3g} s expected to be saved, {self.price_s:.3g} s to compile"


def changed(last: Decision, value: Payback | None) -> Change | None:
    """Whether a kernel is to be demoted or promoted again; ``None`` where nothing changes.

    Args:
        last: the last decision about it.
        value: what it is worth now; ``None`` where nothing is asked of it.
    """
    forecast_s, price_s = (value.saved_s + value.spared_s, value.price_s) if value is not None else (0.0, 0.0)
    was = last.kind != DEMOTION
    stays = value is not None and stays_promoted(was, forecast_s, price_s)
    if stays == was:
        return None
    return Change(PROMOTION if stays else DEMOTION, last.key, last.name, forecast_s, price_s)


def note(journal: Journal, changes: Sequence[Change]) -> None:
    """Writes changes to the log of decisions, where cleaning finds them."""
    for one in changes:
        journal.decided(one.kind, key=one.key, name=one.name, reason=one.reason, detail=one.detail)
    journal.flush()

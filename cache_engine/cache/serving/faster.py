"""Exact kernels in place of those that are asked for, where this store's timings say that they are faster.

Only measured times count: without a timing of both for the very m on one device there is no difference to act on.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from cache_engine.cache.elsewhere import Elsewhere
from cache_engine.cache.selection import Asked, Selection, Selector
from cache_engine.errors import GemmCacheError
from cache_engine.model.gemm import Specialisation

LOOK_AGAIN_S = 60.0
"""After so long a kernel that was not there is looked for again: another process may have compiled it."""

_REPLACEABLE = (Specialisation.NK, Specialisation.BUCKETED)
_MOST_KEPT = 8192

_Offer = tuple[Selection | None, float]
"""The exact kernel, and when to look whether it is there: 0 where it is, infinity where there is no such kernel."""


class Faster:
    """Finds the exact kernels that serve in place of others. Safe to use from several threads."""

    def __init__(self, selector: Selector, elsewhere: Elsewhere) -> None:
        """Reads nothing yet."""
        self._selector, self._elsewhere = selector, elsewhere
        self.forget()

    def forget(self) -> None:
        """Has timings and kernels looked at again."""
        self._is_possible: bool | None = None
        self._kept: dict[Asked, _Offer] = {}

    def there(self, asked: Asked) -> Selection | None:
        """The exact kernel that serves what is asked for, as it was measured to be faster and is there."""
        if not self._may_be_any():
            return None
        exact, look_at = self._kept.get(asked) or self._keep(asked, self._measured(asked))
        if look_at and exact is not None and time.monotonic() >= look_at:
            exact, look_at = self._keep(asked, exact)
        return None if look_at else exact

    def gone(self, asked: Asked) -> None:
        """Notes that the kernel is no longer there: what was asked for serves again."""
        exact, _ = self._kept.get(asked, (None, 0.0))
        self._kept[asked] = exact, time.monotonic() + LOOK_AGAIN_S

    def measured(self, asked: Asked) -> Selection | None:
        """The exact kernel that was measured to be faster than what is selected, be it there or not."""
        if not self._may_be_any():
            return None
        kept = self._kept.get(asked)
        return self._measured(asked) if kept is None else kept[0]

    def _may_be_any(self) -> bool:
        """Whether any exact kernel was timed. Looked up once."""
        if self._is_possible is None:
            history = self._selector.history
            self._is_possible = history is not None and history.has_exact
        return self._is_possible

    def _measured(self, asked: Asked) -> Selection | None:
        problem, family, compiler, config = asked
        history = self._selector.history
        if history is None or config is not None or problem.specialisation not in _REPLACEABLE:
            return None
        try:
            selected = self._selector.select(*asked)
            exact = self._selector.select(replace(problem, specialisation=Specialisation.EXACT), family, compiler, None)
        except GemmCacheError:
            return None
        present_us, exact_us = (
            history.median_us(one.problem, one.family.name, one.compiler.name, one.config) for one in (selected, exact)
        )
        return exact if present_us is not None and exact_us is not None and exact_us < present_us else None

    def _keep(self, asked: Asked, exact: Selection | None) -> _Offer:
        look_at = math.inf
        if exact is not None:
            look_at = 0.0 if self._elsewhere.has(exact.key) else time.monotonic() + LOOK_AGAIN_S
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[asked] = exact, look_at
        return exact, look_at

"""What a store is asked for."""

from __future__ import annotations

import time

from cache_engine.config import Settings
from cache_engine.policy.demand import Ledger
from cache_engine.policy.timeline import Timeline
from cache_engine.store.journal import Journal
from cache_engine.store.journal.demand import read_timeline
from cache_engine.store.layout import StoreLayout


class Demand:
    """What a store is asked for, by all processes and across restarts."""

    def __init__(self, layout: StoreLayout, settings: Settings, journal: Journal) -> None:
        """Reads nothing yet."""
        self._layout, self._settings, self._journal = layout, settings, journal

    def timeline(self) -> Timeline:
        """What was asked for by time, this process's own requests included."""
        self._journal.flush()
        return read_timeline(self._layout)

    def ledger(self) -> Ledger:
        """What is asked for now: a request counts half as much with each ``demand_half_life_h``."""
        return self.timeline().ledger(self._settings.demand_half_life_h * 3600, time.time())

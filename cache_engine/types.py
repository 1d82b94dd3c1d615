"""Public types of the arguments and results of ``Cache``: records, statistics, plans, demand; and type aliases."""

from cache_engine.batch.warm import Warmed
from cache_engine.cache.demand import Demand, DemandReport, DemandShare
from cache_engine.cache.operator import Product, Switches
from cache_engine.cache.queue import PendingKernel, Priority, QueueState
from cache_engine.cache.selection import Selection
from cache_engine.cache.tiers import Found, Preloaded
from cache_engine.insight.comparison import Nearest, Pair
from cache_engine.insight.explanation import Explanation
from cache_engine.model.artifact import Record, RecordedProblem, Resources
from cache_engine.model.decision import Decision
from cache_engine.model.events import Statistics, Tally, Totals
from cache_engine.model.gemm import (
    ActivationLike,
    DTypeLike,
    EpilogueLike,
    LayoutLike,
    ModeLike,
    ScalesLike,
    SpecialisationLike,
)
from cache_engine.model.kernel import Launch
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.store.base import Loaded
from cache_engine.upkeep.cleanup import Cleaned
from cache_engine.upkeep.findings import Finding
from cache_engine.upkeep.integrity import RepairAct
from cache_engine.upkeep.packs import Exported, Imported
from cache_engine.upkeep.plan import EvictionPlan, Limits

__all__ = [
    "ActivationLike",
    "CacheKey",
    "Cleaned",
    "DTypeLike",
    "Decision",
    "Demand",
    "DemandReport",
    "DemandShare",
    "EpilogueLike",
    "EvictionPlan",
    "Explanation",
    "Exported",
    "Failure",
    "Finding",
    "Found",
    "Imported",
    "Launch",
    "LayoutLike",
    "Limits",
    "Loaded",
    "ModeLike",
    "Nearest",
    "Pair",
    "PendingKernel",
    "Preloaded",
    "Priority",
    "Product",
    "QueueState",
    "Record",
    "RecordedProblem",
    "RepairAct",
    "Resources",
    "ScalesLike",
    "Selection",
    "SpecialisationLike",
    "Statistics",
    "Switches",
    "Tally",
    "Totals",
    "Warmed",
]

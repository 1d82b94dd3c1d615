"""Documents about many kernels at once: timings, tuning, warming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cache_engine.batch.results import CandidateRow, Chosen, FailedProblem, NeededKernel, ServedSizes, Tuning, Warmed
from cache_engine.cli.documents import filled
from cache_engine.insight.toolchains import TimingRow
from cache_engine.model.outcome import in_json
from cache_engine.store.timings import TimedDevice

if TYPE_CHECKING:
    from cache_engine.batch import tuning
    from cache_engine.batch.tuning import Candidate, Tuned
    from cache_engine.cache.selection import Selection

# Documents of verbs that pages use too.
__all__ = ["CandidateRow", "Chosen", "FailedProblem", "NeededKernel", "ServedSizes", "Tuning", "Warmed"]


class TimingList(msgspec.Struct, kw_only=True):
    """What ``timings ls`` prints: the devices of the store, and the timings that match, newest first."""

    devices: list[TimedDevice]
    total: int
    rows: list[TimingRow]


class TimingsExported(msgspec.Struct, kw_only=True):
    """What ``timings export`` prints."""

    file: str
    timings: int


class CorrectionRow(msgspec.Struct, kw_only=True):
    """What timings say of a family's configs with one tile; see ``kernels.agreement.Correction``."""

    family: str
    block_m: int
    block_n: int
    ratio: float
    uncertainty: float
    timings: int
    applies: bool


class DeviceAgreement(msgspec.Struct, kw_only=True):
    """How the cost model ranks what was timed on a device; see ``kernels.agreement.Agreement``."""

    device: str
    fingerprint: str
    problems: int
    timings: int
    rank_correlation: float | None
    lowest: float | None
    corrections: list[CorrectionRow]


class AgreementReport(msgspec.Struct, kw_only=True):
    """What ``tune --report`` prints: a row for each device with timings in the store."""

    devices: list[DeviceAgreement]


def agreement_report(found: Sequence[tuning.DeviceAgreement]) -> AgreementReport:
    """The document of what the store's timings say."""
    return AgreementReport(
        devices=[
            filled(
                DeviceAgreement,
                one,
                one.agreement,
                corrections=[
                    filled(CorrectionRow, row, block_m=row.tile[0], block_n=row.tile[1])
                    for row in one.agreement.corrections
                ],
            )
            for one in found
        ]
    )


class Sampled(msgspec.Struct, kw_only=True):
    """What ``sample`` prints; ``found_again`` kernels came from disk when they were requested a second time.

    ``requests`` were made after that, which count as demand.
    """

    store: str
    compiled: int
    found: int
    failed: list[FailedProblem]
    found_again: int
    requests: int = 0
    seconds: float


# ---- From the engine's values ----


def candidate(one: Candidate, clock_khz: int) -> CandidateRow:
    """The row of a config before it is timed."""
    selected = one.selection
    return filled(
        CandidateRow,
        one,
        selected,
        family=selected.family.name,
        compiler=selected.compiler.name,
        config_text=str(selected.config),
        predicted_us=one.predicted_us(clock_khz),
    )


def add_timing(row: CandidateRow, one: Tuned) -> None:
    """Adds to a row what timing came to."""
    timing = one.timing
    row.median_us = None if timing is None else timing.median_us
    row.ratio = None if timing is None else timing.median_us / row.predicted_us
    row.tflops = None if timing is None else timing.tflops
    row.verified = timing is not None and timing.verified
    row.trouble = in_json(one.trouble)


def chosen(selected: Selection) -> Chosen:
    """The document of a selection."""
    return filled(
        Chosen, selected, family=selected.family.name, compiler=selected.compiler.name, config_text=str(selected.config)
    )

"""Documents about many kernels at once: timings, tuning, warming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from cache_engine.cli.documents import filled
from cache_engine.insight.toolchains import TimingRow
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.outcome import in_json
from cache_engine.store.timings import TimedDevice

if TYPE_CHECKING:
    from cache_engine.batch import tuning
    from cache_engine.batch.tuning import Candidate, Tuned
    from cache_engine.cache.selection import Selection


class TimingList(msgspec.Struct, kw_only=True):
    """What ``timings`` prints: the devices of the store, and the timings that match, newest first."""

    devices: list[TimedDevice]
    total: int
    rows: list[TimingRow]


class TimingsExported(msgspec.Struct, kw_only=True):
    """What ``timings FILE`` prints."""

    file: str
    timings: int


class CandidateRow(msgspec.Struct, kw_only=True):
    """A config that ``tune`` times; the fields from ``median_us`` on are missing in a dry run.

    Attributes:
        tier: which tier has its kernel; ``None`` when it must be compiled.
        ratio: the measured time over the predicted one.
        trouble: why it cannot be chosen; empty when it can.
    """

    key: str
    family: str
    compiler: str
    config: KernelConfig
    config_text: str
    tier: str | None
    predicted_cycles: float
    predicted_us: float
    median_us: float | UnsetType | None = UNSET
    ratio: float | UnsetType | None = UNSET
    tflops: float | UnsetType | None = UNSET
    verified: bool | UnsetType = UNSET
    trouble: str | UnsetType = UNSET


class Chosen(msgspec.Struct, kw_only=True):
    """The config that serves the problem."""

    key: str
    family: str
    compiler: str
    config: KernelConfig
    config_text: str
    config_from: str


class Tuning(msgspec.Struct, kw_only=True):
    """What ``tune`` prints; ``device`` is ``None`` without a GPU.

    Attributes:
        estimated_seconds: how long compiling the configs without a kernel takes, predicted at the start; what the
            prediction is made from and its error are as of ``Warmed``.
    """

    dry_run: bool
    problem: GemmProblem
    device: str | None
    clock_mhz: float
    candidates: list[CandidateRow]
    chosen: Chosen
    failed: int
    seconds: float
    estimated_seconds: float = 0.0
    estimated_error: float | None = None
    estimated_by: str = ""


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
    """What ``tune --check`` prints: a row for each device with timings in the store."""

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

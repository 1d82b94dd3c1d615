"""What tuning would time, and what it measured. A job's file may hold anything: see ``result``."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

import msgspec

from app.presenters.shared import Row
from cache_engine.batch.jobs import Job
from cache_engine.batch.results import Tuning
from cache_engine.batch.tuning import Candidate
from cache_engine.units import counted, human_ms


def candidate_table(candidates: Iterable[Candidate]) -> list[Row]:
    """The configs that would be timed, best prediction first."""
    found = list(candidates)
    best = min((one.predicted_cycles for one in found), default=0.0)
    return [
        {
            "Family": one.selection.family.name,
            "Config": str(one.selection.config),
            "Predicted ÷ best": one.predicted_cycles / best,
            "Cached": one.tier is not None,
            "Kernel": one.selection.key,
        }
        for one in found
    ]


def tuned_of(job: Job) -> Tuning:
    """What a job has tuned; raises one of ``NO_RESULT``."""
    return msgspec.json.decode(job.result, type=Tuning)


def tuned_words(done: Tuning) -> str:
    """The config that serves from now on, in a sentence."""
    chosen = done.chosen
    timed = counted(len(done.candidates) - done.failed, "config")
    return (
        f"{timed} timed on {done.device} in {human_ms(done.seconds * 1e3)}. Now used: {chosen.family} "
        f"{chosen.config_text} ({chosen.config_from})."
    )


def tuned_table(done: Tuning) -> list[Row]:
    """The configs with their measured times, fastest first; those without one last."""
    rows = [
        {
            "Family": one.family,
            "Config": one.config_text,
            "Median, µs": one.median_us or None,
            "Predicted, µs": one.predicted_us,
            "Measured ÷ predicted": one.ratio or None,
            "TFLOP/s": one.tflops or None,
            "Result": one.trouble or "correct",
            "Open": f"/kernel?{urlencode({'key': one.key})}",
        }
        for one in done.candidates
    ]
    return sorted(rows, key=lambda row: (row["Median, µs"] is None, row["Median, µs"] or 0.0))

"""What a job was asked and how far it has come."""

from __future__ import annotations

from app.presenters.shared import Row
from cache_engine.errors import InvalidProblem
from cache_engine.jobs import Job
from cache_engine.model.gemm import DType, GemmProblem, Layout
from cache_engine.units import human_ms

AS_INPUTS = "as A and B"


def asked_of(job: Job) -> Row:
    """What a job was asked, as the Compile page's form names it; nothing of a command that it would not give."""
    named = dict(zip(job.command[4::2], job.command[5::2], strict=False))
    try:
        m, n, k = (int(size) for size in job.command[1:4])
        asked = GemmProblem(
            m,
            n,
            k,
            int(named["--batch"]),
            dtype=DType(named["--dtype"]),
            out_dtype=DType(named["--out-dtype"]),
            layout=Layout(named["--layout"]),
            arch=named["--arch"],
        )
    except (KeyError, ValueError, InvalidProblem):
        return {}
    values = {name: getattr(asked, name) for name in ("m", "n", "k", "batch", "dtype", "layout", "arch")}
    return {**values, "out_dtype": AS_INPUTS if asked.output is asked.dtype else asked.output}


def stage_lines(job: Job) -> str:
    """A job's stages with their times, a line each, the one under way last. One entered twice is one line."""
    times: dict[str, float | None] = {}
    for stage in job.stages:
        spent = times.pop(stage.name, 0.0)
        times[stage.name] = None if stage.ms is None or spent is None else spent + stage.ms
    return "\n".join(f"{name.replace('_', ' ')} — {'…' if ms is None else human_ms(ms)}" for name, ms in times.items())

"""Compiles a kernel again that another machine made, and compares the bytes: what a signature cannot prove."""

from __future__ import annotations

from dataclasses import dataclass

from cache_engine.cache.cache import Cache
from cache_engine.cache.making import make_artifact
from cache_engine.cache.stages import StageClock
from cache_engine.errors import CompileError, NotHereError, UsageError
from cache_engine.model.artifact import Record


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild.

    Attributes:
        is_same: whether the code is the same, byte for byte; ``None`` where it could not be compiled here.
        why: why not; empty where it is the same.
    """

    is_same: bool | None
    why: str = ""


def rebuild(cache: Cache, record: Record, cubin: bytes) -> Rebuilt:
    """Compiles what a record says, with nothing stored, and compares.

    NVRTC and NVCC make the same bytes from the same input on every machine. A kernel of another toolchain, of other
    flags or of another version of this program cannot be compiled here to the same key, and is left out.
    """
    try:
        problem = record.problem.on(record.arch)
        made = cache.selector.select_installed(problem, record.family, record.compiler, record.config)
        if made.key != record.key:
            return Rebuilt(None, "its toolchain, flags or template are not those of this machine")
        code = make_artifact(made, StageClock()).cubin
    except (UsageError, NotHereError) as error:
        return Rebuilt(None, str(error))
    except CompileError as error:
        return Rebuilt(False, f"it does not compile: {error}")
    if code == cubin:
        return Rebuilt(True)
    return Rebuilt(False, f"compiled here it is other code: {len(code):,} bytes, there {len(cubin):,}")

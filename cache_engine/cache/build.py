"""Makes a kernel after a miss: from a selection its artifact, and then its record and the measurement of its speed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cache_engine._version import version_and_build
from cache_engine.cache.selection import Selection
from cache_engine.cache.stages import COMPILE, GENERATE, START_COMPILER, StageClock
from cache_engine.compilers.diagnostics import warnings
from cache_engine.errors import CompileError
from cache_engine.kernels.source import render
from cache_engine.model.artifact import Artifact, Blob, Record, RecordedProblem
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.measurement import Measurement

if TYPE_CHECKING:
    from cache_engine.gpu.timer import Timing
    from cache_engine.usage.compile_time import Compile


def make_artifact(selection: Selection, stages: StageClock) -> Artifact:
    """Generates the source and compiles it.

    Raises:
        CompilerMissing, ToolMissing: when a program that is needed is not installed.
        CompileError: when the compiler refuses the source.
    """
    from cache_engine.compilers.disassembly import resources  # imports subprocess, which no hit needs

    with stages(GENERATE):
        source = render(selection.family.template, selection.constants)
    with stages(START_COMPILER):
        selection.compiler.load()
    with stages(COMPILE):
        try:
            compiled = selection.compiler.compile(source, selection.problem.arch or "")
        except CompileError as error:
            error.command = selection.command
            raise
    dynamic_shared_bytes = compiled.shared_bytes
    if dynamic_shared_bytes is None:
        dynamic_shared_bytes = selection.family.shared_bytes(selection.problem, selection.config)
    used = resources(compiled.cubin, compiled.log, dynamic_shared_bytes)
    return Artifact(compiled.cubin, compiled.ptx, source.encode(), compiled.log, used)


def describe(selection: Selection, artifact: Artifact, blob: Blob, stages_ms: dict[str, float]) -> Record:
    """The record of an artifact that was just compiled."""
    toolchain = selection.compiler.fingerprint()
    return Record(
        key=selection.key,
        components=selection.prefix.with_constants(selection.constants),
        name=selection.name,
        family=selection.family.name,
        compiler=toolchain.compiler,
        compiler_version=toolchain.version,
        arch=selection.problem.arch or "",
        problem=RecordedProblem.of(selection.problem),
        config=selection.config,
        resources=artifact.resources,
        blob=blob,
        compile_ms=stages_ms[COMPILE],
        stages_ms=stages_ms,
        created_at=time.time(),
        created_by=f"gemm-cache {version_and_build()}",
        config_from=selection.config_from,
        warnings=warnings(artifact.log.decode("utf-8", "replace"), artifact.resources),
    )


def compile_of(selection: Selection) -> Compile:
    """The properties of the selected kernel from which its compile time is predicted."""
    from cache_engine.usage.compile_time import Compile

    s = selection
    return Compile(s.family.name, s.compiler.name, s.problem.arch or "", RecordedProblem.of(s.problem), s.config)


def measurement(record: Record, problem: GemmProblem, timing: Timing, config_from: str) -> Measurement:
    """A measurement to be stored: the timing of the kernel with this record, for this problem."""
    import msgspec

    # The kernel's own specialisation, which differs from the problem's if the kernel served in place of another.
    measured = msgspec.structs.replace(RecordedProblem.of(problem), specialisation=record.problem.specialisation)
    return Measurement(
        key=record.key,
        family=record.family,
        compiler=record.compiler,
        compiler_version=record.compiler_version,
        arch=record.arch,
        problem=measured,
        config=record.config,
        config_from=config_from,
        device=timing.device,
        timing={name: value for name, value in msgspec.to_builtins(timing).items() if name != "device"},
        measured_at=time.time(),
        measured_by=f"gemm-cache {version_and_build()}",
    )

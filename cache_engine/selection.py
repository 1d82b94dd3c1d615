"""From a problem to a key, and from there to an artifact and its record: what the cache does between its lookups."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cache_engine._version import __version__
from cache_engine.compilers import COMPILERS
from cache_engine.compilers.base import Compiler
from cache_engine.errors import UsageError
from cache_engine.kernels.family import Family, kernel_name
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.kernels.source import render, template_digest
from cache_engine.model.artifact import Artifact, Blob, Record, RecordedProblem
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey, KeyPrefix
from cache_engine.stages import COMPILE, GENERATE, START_COMPILER, StageClock

# A serving process asks for a few thousand sizes; each takes about a kilobyte.
_MOST_KEPT = 8192


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen for a problem, and the key that this makes."""

    problem: GemmProblem
    family: Family
    config: KernelConfig
    compiler: Compiler
    constants: dict[str, str | int]
    prefix: KeyPrefix
    key: CacheKey

    @property
    def name(self) -> str:
        """What the kernel is called."""
        return kernel_name(self.family, self.problem, self.config)


class Selector:
    """Makes selections. What is the same for many of them is hashed once, and the latest are kept."""

    def __init__(self) -> None:
        """Hashes nothing yet."""
        self._kept: dict[tuple[GemmProblem, str | None, str | None, KernelConfig | None], Selection] = {}
        self._prefixes: dict[tuple[str, str, str], KeyPrefix] = {}

    def select(
        self, problem: GemmProblem, family: str | None, compiler: str | None, config: KernelConfig | None
    ) -> Selection:
        """What would serve a problem whose target is set. Looks nothing up; takes microseconds.

        Args:
            family, compiler: either, both or neither; see ``_compiler_for``.

        Raises:
            UsageError: when the request cannot be right.
            CompilerMissing: when the compiler is not installed.
        """
        asked = (problem, family, compiler, config)
        selection = self._kept.get(asked)
        if selection is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            selection = self._kept[asked] = self._select(*asked)
        return selection

    def _select(
        self, problem: GemmProblem, family: str | None, compiler: str | None, config: KernelConfig | None
    ) -> Selection:
        chosen_compiler = _compiler_for(family, compiler)
        chosen, chosen_config = choose(problem, family, config, chosen_compiler.takes)
        constants = chosen.constants(problem, chosen_config)
        prefix = self._prefix(chosen, chosen_compiler, problem.arch or "")
        key = prefix.key(constants)
        return Selection(problem, chosen, chosen_config, chosen_compiler, constants, prefix, key)

    def is_stale(self, record: Record) -> bool:
        """Whether no kernel asked for here can ever hit the entry: its compiler, template or flags are not these.

        Raises:
            CompilerMissing: when the compiler that made it is not installed here, so that this cannot be told.
        """
        family, compiler = FAMILIES.get(record.family), COMPILERS.get(record.compiler)
        if family is None or compiler is None:
            return True
        components = self._prefix(family, compiler, record.arch).components
        return record.components[: len(components)] != components

    def _prefix(self, family: Family, compiler: Compiler, arch: str) -> KeyPrefix:
        """The components that all kernels of a family, compiler and target have in common."""
        identity = (family.name, compiler.name, arch)
        prefix = self._prefixes.get(identity)
        if prefix is None:
            prefix = self._prefixes[identity] = KeyPrefix(
                (
                    ("family", family.name),
                    ("template", template_digest(family.template)),
                    *compiler.fingerprint().components(),
                    ("flags", " ".join(compiler.flags)),
                    ("arch", arch),
                )
            )
        return prefix


def _compiler_for(family: str | None, compiler: str | None) -> Compiler:
    """The compiler for a request that names a family, a compiler, both or neither.

    A family goes with the compilers that take its template. Where only one of the two is named it says what the other
    can be; where neither is, it is CUDA C++.

    Raises:
        UsageError: when there is no such compiler, or it cannot compile the family.
    """
    if compiler is not None and compiler not in COMPILERS:
        raise UsageError(f"unknown compiler {compiler!r}; use one of: {', '.join(COMPILERS)}")
    if family is None or family not in FAMILIES:  # an unknown family is refused when it is chosen
        return COMPILERS[compiler or "nvrtc"]
    able = [each for each in COMPILERS.values() if FAMILIES[family].template.endswith(each.takes)]
    if compiler is None:
        return able[0]
    if COMPILERS[compiler] not in able:
        names = " or ".join(each.name for each in able)
        raise UsageError(f"{compiler} cannot compile the {family} family, {names} can; name only one of the two")
    return COMPILERS[compiler]


def make_artifact(selection: Selection, stages: StageClock) -> Artifact:
    """Generates the source and compiles it.

    Raises:
        CompilerMissing, ToolMissing: when something is not installed.
        CompileError: when the compiler refuses the source.
    """
    from cache_engine.compilers.inspect import resources  # brings in subprocess, which no hit needs

    with stages(GENERATE):
        source = render(selection.family.template, selection.constants)
    with stages(START_COMPILER):
        selection.compiler.load()
    with stages(COMPILE):
        compiled = selection.compiler.compile(source, selection.problem.arch or "")
    dynamic_shared_bytes = compiled.shared_bytes
    if dynamic_shared_bytes is None:
        dynamic_shared_bytes = selection.family.shared_bytes(selection.problem, selection.config)
    used = resources(compiled.cubin, compiled.log, dynamic_shared_bytes)
    return Artifact(compiled.cubin, compiled.ptx, source.encode(), compiled.log, used)


def describe(selection: Selection, artifact: Artifact, blob: Blob, stages_ms: dict[str, float]) -> Record:
    """The record of an artifact made now."""
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
        created_by=f"gemm-cache {__version__}",
    )

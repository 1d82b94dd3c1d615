"""From a problem to a key, and from there to an artifact and its record: what the cache does between its lookups."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cache_engine._version import __version__
from cache_engine.compilers import COMPILERS
from cache_engine.compilers.base import Compiler
from cache_engine.compilers.diagnostics import warnings
from cache_engine.compilers.flags import extra_flags
from cache_engine.engine.history import History
from cache_engine.engine.reproduction import command_of_choice
from cache_engine.engine.stages import COMPILE, GENERATE, START_COMPILER, StageClock
from cache_engine.errors import CompileError, CompilerMissing, GemmCacheError, UsageError
from cache_engine.kernels.family import Family
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.kernels.source import render, template_digest
from cache_engine.model.artifact import Artifact, Blob, Record, RecordedProblem
from cache_engine.model.gemm import OPT_LEVELS, GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey, Components, KeyPrefix
from cache_engine.model.measurement import COST_MODEL, GIVEN, Measurement

if TYPE_CHECKING:
    from cache_engine.device.timer import Timing

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
    config_from: str = COST_MODEL
    """``"given"``, ``"cost model"`` or ``"measured on …"``."""

    @property
    def name(self) -> str:
        """What the kernel is called."""
        return str(self.constants["KERNEL_NAME"])

    @property
    def extra_flags(self) -> tuple[str, ...]:
        """Those of the compiler's flags that the settings ask for."""
        return self.compiler.flags[len(COMPILERS[self.compiler.name].flags) :]

    @property
    def command(self) -> str:
        """The command that compiles this again, with every choice stated."""
        return command_of_choice(
            RecordedProblem.of(self.problem),
            self.problem.arch or "",
            self.compiler.name,
            self.family.name,
            self.config,
            self.extra_flags,
        )


class Selector:
    """Makes selections. What many of them share is hashed once, and the latest are cached."""

    def __init__(
        self, *, fast_math: bool = False, compiler_flags: tuple[str, ...] = (), history: History | None = None
    ) -> None:
        """Hashes nothing yet.

        Args:
            fast_math, compiler_flags: settings of that name, for every kernel.
            history: measurements that choose before the cost model does.
        """
        self._fast_math, self._compiler_flags = fast_math, compiler_flags
        self._history = history
        self._compilers: dict[tuple[str, int], Compiler] = {}
        self._missing: set[str] = set()
        self._kept: dict[tuple[GemmProblem, str | None, str | None, KernelConfig | None], Selection] = {}
        self._prefixes: dict[tuple[str, str, int, str], KeyPrefix] = {}

    def select(
        self, problem: GemmProblem, family: str | None, compiler: str | None, config: KernelConfig | None
    ) -> Selection:
        """What would serve a problem whose target is set. Looks nothing up; takes microseconds.

        Args:
            family, compiler: either, both or neither; see ``_compiler_for``.

        Raises:
            UsageError: when the request is invalid.
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
        chosen_compiler = self._flagged(_compiler_for(family, compiler).name, problem.opt_level)
        chosen, chosen_config = choose(problem, family, config, chosen_compiler.takes)
        constants = chosen.constants(problem, chosen_config)
        prefix = self._prefix(chosen, chosen_compiler, problem.opt_level, problem.arch or "")
        key = prefix.key(constants)
        config_from = COST_MODEL if config is None else GIVEN
        selection = Selection(problem, chosen, chosen_config, chosen_compiler, constants, prefix, key, config_from)
        if config is not None or self._history is None:
            return selection
        return self._measured(selection, family, compiler, self._history) or selection

    def _measured(
        self, modelled: Selection, family: str | None, compiler: str | None, history: History
    ) -> Selection | None:
        """What measurements choose in place of the cost model, if they can.

        A time says something only beside others: among those of a size must be one of the family that would serve
        without them, with a config that nobody gave by hand. Else one bad config, timed alone, would serve for good.
        A family's own compiler counts, unless another was asked for.
        """
        for ranked in history.rankings(modelled.problem):
            if not any(
                (one.family, one.compiler) == (modelled.family.name, modelled.compiler.name)
                and one.config_from != GIVEN
                for one in ranked
            ):
                continue
            for one in ranked:
                # What was measured may not be feasible, or its compiler not installed, any more.
                with suppress(GemmCacheError):
                    if family in (None, one.family) and _compiler_for(one.family, compiler).name == one.compiler:
                        selection = self._select(modelled.problem, one.family, one.compiler, one.config)
                        return replace(selection, config_from=history.in_words(one))
        return None

    def forget(self) -> None:
        """Has measurements read again, as there are new ones."""
        if self._history is not None:
            self._history.forget()
            self._kept.clear()

    def is_stale(self, record: Record) -> bool:
        """Whether no kernel asked for here can ever hit the entry: its compiler, template or flags are not these.

        Where the compiler that made it is not installed this is unknown, and the answer is no.
        """
        try:
            components = self.present(record.family, record.compiler, record.problem.opt_level, record.arch)
        except CompilerMissing:
            return False
        return components is None or record.components[: len(components)] != components

    def present(self, family: str, compiler: str, level: int, arch: str) -> Components | None:
        """What the keys of a family, compiler at a level, and target start with here; ``None`` when there is no such.

        Raises:
            CompilerMissing: when the compiler is not installed.
        """
        if family not in FAMILIES or compiler not in COMPILERS or level not in OPT_LEVELS:
            return None
        if compiler in self._missing:
            raise CompilerMissing(f"{compiler} is not installed")
        try:
            return self._prefix(FAMILIES[family], self._flagged(compiler, level), level, arch).components
        except CompilerMissing:
            self._missing.add(compiler)  # looking for it takes time, and this is asked for every record
            raise

    def _flagged(self, name: str, level: int) -> Compiler:
        """A compiler at a level of optimisation, with the flags that the settings ask for."""
        compiler = self._compilers.get((name, level))
        if compiler is None:
            compiler = COMPILERS[name]
            if level != OPT_LEVELS[-1]:
                compiler = compiler.at_level(level)
            extra = extra_flags(self._fast_math, self._compiler_flags)
            if extra:
                compiler = compiler.with_flags(extra)
            self._compilers[name, level] = compiler
        return compiler

    def _prefix(self, family: Family, compiler: Compiler, level: int, arch: str) -> KeyPrefix:
        """The components that all kernels of a family, compiler at a level, and target have in common."""
        identity = (family.name, compiler.name, level, arch)
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
        config_from=selection.config_from,
        warnings=warnings(artifact.log.decode("utf-8", "replace"), artifact.resources),
    )


def measurement(record: Record, problem: GemmProblem, timing: Timing, config_from: str) -> Measurement:
    """A timing made now of a kernel with this record, for this problem, as it is stored."""
    import msgspec

    return Measurement(
        key=record.key,
        family=record.family,
        compiler=record.compiler,
        compiler_version=record.compiler_version,
        arch=record.arch,
        problem=RecordedProblem.of(problem),
        config=record.config,
        config_from=config_from,
        device=timing.device,
        timing={name: value for name, value in msgspec.to_builtins(timing).items() if name != "device"},
        measured_at=time.time(),
        measured_by=f"gemm-cache {__version__}",
    )

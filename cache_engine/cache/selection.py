"""From a problem to a key: which family, config and compiler, and which toolchain the key names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cache_engine.cache.elsewhere import Elsewhere, Stated
from cache_engine.cache.history import History
from cache_engine.compilers import COMPILERS
from cache_engine.compilers.base import Compiler, Cuda
from cache_engine.compilers.flags import extra_flags
from cache_engine.compilers.tools import cuda_for
from cache_engine.errors import CompilerMissing, GemmCacheError, UsageError
from cache_engine.gpu.probe import driver_cuda
from cache_engine.kernels.family import Family
from cache_engine.kernels.select import FAMILIES, choose, turning_points
from cache_engine.kernels.source import fp8_constants, template_digest
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.fingerprint import Provenance
from cache_engine.model.gemm import OPT_LEVELS, GemmProblem, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey, Components, KeyPrefix
from cache_engine.model.measurement import COST_MODEL, GIVEN
from cache_engine.settings import LOCAL, Settings

if TYPE_CHECKING:
    from cache_engine.kernels.agreement import Factors

# A serving process asks for a few thousand sizes; each takes about a kilobyte.
_MOST_KEPT = 8192

INSTALLED = "installed"
"""Where the toolchain of a key is from, unless a pack or the store names it."""

Asked = tuple[GemmProblem, str | None, str | None, KernelConfig | None]
"""Problem, family, compiler and config, as ``Selector.select`` has them."""


class _Choice(NamedTuple):
    """The choice for a problem, for any build of the compiler."""

    problem: GemmProblem
    family: Family
    config: KernelConfig
    compiler: Compiler
    constants: dict[str, str | int]
    config_from: str


@dataclass(slots=True)
class Selection:
    """The choice for a problem, and its key. Not frozen: making a frozen one takes three times as long."""

    problem: GemmProblem
    family: Family
    config: KernelConfig
    compiler: Compiler
    constants: dict[str, str | int]
    prefix: KeyPrefix
    key: CacheKey
    config_from: str = COST_MODEL
    """``"given"``, ``"cost model"`` or ``"measured on …"``."""
    toolchain_from: str = INSTALLED
    """What names the toolchain in the key: ``"installed"``, ``"pack NAME"`` or ``"store"``."""

    @property
    def is_compilable(self) -> bool:
        """Whether compiling here makes the kernel of this key: the key names the compiler installed here."""
        return self.toolchain_from == INSTALLED

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.constants["KERNEL_NAME"])

    @property
    def extra_flags(self) -> tuple[str, ...]:
        """Those of the compiler's flags that the settings ask for."""
        return self.compiler.flags[len(COMPILERS[self.compiler.name].flags) :]

    @property
    def command(self) -> str:
        """The command that compiles this again, with every choice stated."""
        from cache_engine.cache.reproduction import command_of_choice

        problem, arch = RecordedProblem.of(self.problem), self.problem.arch or ""
        compiler, family = self.compiler.fingerprint(), self.family.name
        return command_of_choice(problem, arch, compiler, family, self.config, self.extra_flags)


class Selector:
    """Makes selections. What many of them share is hashed once, and the latest are cached."""

    def __init__(
        self, settings: Settings | None = None, *, history: History | None = None, elsewhere: Elsewhere | None = None
    ) -> None:
        """Hashes nothing yet.

        Args:
            settings: flags for every kernel, and which toolchains keys may name; the defaults when there are none.
            history: measurements that choose before the cost model does.
            elsewhere: the toolchains that a key may name besides the one installed here; none by default.
        """
        settings = settings or Settings()
        self._compiler_flags, self._cuda = settings.compiler_flags, settings.cuda
        self.history = history
        self.factors: Callable[[], Factors] = tuple if history is None else history.factors
        self._elsewhere = None if settings.toolchain == LOCAL else elsewhere
        self._installed_first = not settings.serves_any_toolchain
        self._compilers: dict[tuple[str, int, Cuda], Compiler] = {}
        self._missing: dict[Compiler, str] = {}
        self._choices: dict[Asked, _Choice] = {}
        self._kept: dict[Asked, Selection] = {}
        self._prefixes: dict[tuple[str, str, int, str, Stated | None], KeyPrefix] = {}

    def select(
        self,
        problem: GemmProblem,
        family: str | None,
        compiler: str | None,
        config: KernelConfig | None,
        *,
        missed: Collection[CacheKey] = (),
    ) -> Selection:
        """The kernel for a problem whose target is set. Takes microseconds.

        Looks nothing up, unless keys may name other toolchains: then it looks where an entry is, and reads none.

        Args:
            family, compiler: either, both or neither; see ``_compiler_for``.
            missed: keys that were looked up and that no tier has.

        Raises:
            UsageError: when the request is invalid.
            CompilerMissing: when the compiler is not installed, and no toolchain is left that the key could name.
        """
        asked = (problem, family, compiler, config)
        selection = self._kept.get(asked)
        if selection is not None and selection.key not in missed:
            return selection
        selection, is_final = self._resolved(self._choice(asked), missed)
        if is_final:
            self._keep(asked, selection)
        return selection

    def _keep(self, asked: Asked, selection: Selection) -> None:
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[asked] = selection

    def select_installed(
        self, problem: GemmProblem, family: str | None, compiler: str | None, config: KernelConfig | None
    ) -> Selection:
        """As ``select``, with the compiler installed here in the key."""
        return self._keyed(self._choice((problem, family, compiler, config)), None)

    def select_elsewhere(self, selection: Selection, elsewhere: Elsewhere) -> Selection | None:
        """The same kernel as another toolchain made it, if a pack or the store has that."""
        name = selection.compiler.name
        every = self.of_other_toolchains(selection, (*elsewhere.of_packs(name), *elsewhere.of_store(name)))
        return next((found for found in every if elsewhere.has(found.key)), None)

    def of_other_toolchains(self, selection: Selection, every: Iterable[Stated]) -> Iterator[Selection]:
        """The same kernel as each of some toolchains makes it."""
        s = selection
        choice = _Choice(s.problem, s.family, s.config, s.compiler, s.constants, s.config_from)
        return map(partial(self._keyed, choice), every)

    def better_here(self, asked: Asked, selection: Selection) -> Selection | None:
        """The selection for the compiler installed here, where a pack's kernel of another build serves."""
        if selection.is_compilable or not self._installed_first or selection.compiler in self._missing:
            return None
        return self.select_installed(*asked)

    def prefer(self, asked: Asked, selection: Selection) -> None:
        """Selects the kernel that was compiled here from now on, in place of a pack's of another build."""
        if self._installed_first:
            self._keep(asked, selection)

    def _resolved(self, choice: _Choice, missed: Collection[CacheKey]) -> tuple[Selection, bool]:
        """The selection of a choice, and whether it stays so: the entry is there, or only one key can be meant."""
        elsewhere = self._elsewhere
        if elsewhere is None:
            return self._keyed(choice, None), True
        if self._installed_first and choice.compiler not in self._missing:
            with suppress(CompilerMissing):  # packs may have it
                return self._here_or_packed(choice, elsewhere, missed), True
        first = None
        for selection in self._candidates(choice, elsewhere):
            if selection.key not in missed:
                if elsewhere.has(selection.key):
                    return selection, True
                first = first or selection
        try:
            return self._keyed_if_installed(choice), False
        except CompilerMissing:
            if first is None or missed:
                self._missing.pop(choice.compiler, None)  # it may be installed before the next lookup
                raise
            return first, False

    def _here_or_packed(self, choice: _Choice, elsewhere: Elsewhere, missed: Collection[CacheKey]) -> Selection:
        """The selection for the compiler installed here; for a build of the packs where only that has an entry."""
        here, packed = self._keyed(choice, None), elsewhere.of_packs(choice.compiler.name)
        if packed and not elsewhere.has(here.key):
            for stated in packed:
                selection = self._keyed(choice, stated)
                if selection.key not in missed and elsewhere.has(selection.key) and self._loads(choice, stated):
                    return selection
        return here

    @staticmethod
    def _loads(choice: _Choice, stated: Stated) -> bool:
        """Whether the driver here, if any, loads what a toolchain makes: not that of a newer CUDA major version."""
        made, here = (_cuda_major(one.version) for one in (stated.toolchain, choice.compiler.fingerprint()))
        if choice.compiler.name == "triton" or made <= here:
            return True
        from cache_engine.gpu.probe import gpu

        device = gpu()
        return isinstance(device, str) or made <= _cuda_major(device.driver)

    def _candidates(self, choice: _Choice, elsewhere: Elsewhere) -> Iterator[Selection]:
        """The selections of a choice for each toolchain that its key may name, in the order of trial."""
        for stated in elsewhere.of_packs(choice.compiler.name):
            yield self._keyed(choice, stated)
        with suppress(CompilerMissing):
            yield self._keyed_if_installed(choice)
        for stated in elsewhere.of_store(choice.compiler.name):
            yield self._keyed(choice, stated)

    def _keyed(self, choice: _Choice, stated: Stated | None) -> Selection:
        """The selection of a choice whose key names a toolchain; without one, the compiler installed here."""
        c = choice
        prefix = self._prefix(c.family, c.compiler, c.problem.opt_level, c.problem.arch or "", stated)
        source = INSTALLED if stated is None else stated.source
        key = prefix.key(c.constants)
        return Selection(
            c.problem, c.family, c.config, c.compiler, c.constants, prefix, key, c.config_from, toolchain_from=source
        )

    def _keyed_if_installed(self, choice: _Choice) -> Selection:
        """As ``_keyed`` with the compiler installed here; that it is missing is found once."""
        if choice.compiler in self._missing:
            raise CompilerMissing(self._missing[choice.compiler])
        try:
            return self._keyed(choice, None)
        except CompilerMissing as error:
            self._missing[choice.compiler] = str(error)
            raise

    def _choice(self, asked: Asked) -> _Choice:
        if self._elsewhere is None or self._installed_first:
            return self._chosen(*asked)  # its selection is cached; hashing a problem takes microseconds
        choice = self._choices.get(asked)
        if choice is None:
            if len(self._choices) >= _MOST_KEPT:
                self._choices.clear()
            choice = self._choices[asked] = self._chosen(*asked)
        return choice

    def _chosen(
        self, problem: GemmProblem, family: str | None, compiler: str | None, config: KernelConfig | None
    ) -> _Choice:
        choice = self._modelled(problem, family, compiler, config)
        if config is not None or self.history is None:
            return choice
        return self._measured(choice, family, compiler, self.history) or choice

    def _modelled(
        self, problem: GemmProblem, family: str | None, compiler: str | None, config: KernelConfig | None
    ) -> _Choice:
        """The choice without measurements of the problem."""
        chosen_compiler = self.compiler(_compiler_for(family, compiler).name, problem.arch or "", problem.opt_level)
        factors, config_from = (self.factors(), COST_MODEL) if config is None else ((), GIVEN)
        chosen, chosen_config = choose(problem, family, config, chosen_compiler.takes, factors)
        constants = chosen.constants(problem, chosen_config)
        return _Choice(problem, chosen, chosen_config, chosen_compiler, constants, config_from)

    def _measured(
        self, modelled: _Choice, family: str | None, compiler: str | None, history: History
    ) -> _Choice | None:
        """The choice by measurements in place of the cost model, if they can make one.

        A time is meaningful only compared with others: the timings of a size must include one of the default family
        with a config that was not given by hand. Otherwise one bad config, timed alone, would always be used.
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
                        choice = self._modelled(modelled.problem, one.family, one.compiler, one.config)
                        self._check_available(choice)
                        return choice._replace(config_from=history.promoted(one, modelled.constants["KERNEL_NAME"]))
        return None

    def turning_points(
        self, problem: GemmProblem, last: int, family: str | None, compiler: str | None
    ) -> Sequence[int]:
        """The problem's own m, and each up to ``last`` that may get another kernel than m - 1; ascending.

        Between two of them all m have the same family, config and constants, but for the widths of reads.

        Raises:
            UsageError: as ``select``.
        """
        if problem.specialisation is Specialisation.EXACT:
            return range(problem.m, last + 1)
        if problem.specialisation is Specialisation.DYNAMIC:
            return (problem.m,)
        if problem.specialisation is Specialisation.BUCKETED:
            begins = (2**power + 1 for power in range(last.bit_length()))
            return [problem.m, *(m for m in begins if problem.m < m <= last)]
        points = turning_points(problem, last, family, _compiler_for(family, compiler).takes, self.factors())
        if self.history is None:
            return points
        return sorted({*points, *self.history.turning_points(problem, last)})

    def _check_available(self, choice: _Choice) -> None:
        """Refuses a choice whose compiler is not installed, unless a pack or the store has kernels of it.

        Raises:
            CompilerMissing: then no key can be made.
        """
        try:
            self._keyed_if_installed(choice)
        except CompilerMissing:
            elsewhere, name = self._elsewhere, choice.compiler.name
            if elsewhere is None or not (elsewhere.of_packs(name) or elsewhere.of_store(name)):
                raise

    def forget(self) -> None:
        """Has measurements read again, as there are new ones."""
        if self.history is not None:
            self.history.forget()
            self._choices.clear()
            self._kept.clear()

    def is_stale(self, record: Record) -> bool:
        """Whether no kernel asked for here can ever hit the entry: its compiler, template or flags are not these.

        Where the compiler that made it is not installed this is unknown, and the answer is no.
        """
        stated = None
        if self._elsewhere is not None and not self._installed_first:
            stated = Stated(Provenance.of(record.components).toolchain, "")
        try:
            components = self.present(
                record.family, record.compiler, record.problem.opt_level, record.arch, stated=stated
            )
        except CompilerMissing:
            return False
        if components is None or record.components[: len(components)] != components:
            return True
        made_of = dict(record.components)
        return any(made_of.get(label, text) != text for label, text in fp8_constants().items())

    def present(
        self, family: str, compiler: str, level: int, arch: str, *, stated: Stated | None = None
    ) -> Components | None:
        """The first key components of a family, compiler at a level, and target here; ``None`` when there is no such.

        Args:
            stated: a toolchain in place of the one installed here.

        Raises:
            CompilerMissing: when the compiler is not installed.
        """
        if family not in FAMILIES or compiler not in COMPILERS or level not in OPT_LEVELS:
            return None
        made_by = self.compiler(compiler, arch, level)
        if stated is None and made_by in self._missing:
            raise CompilerMissing(self._missing[made_by])
        try:
            return self._prefix(FAMILIES[family], made_by, level, arch, stated).components
        except CompilerMissing as error:
            self._missing[made_by] = str(error)  # looking for it takes time, and this is asked for every record
            raise

    def compiler(self, name: str, arch: str, level: int = OPT_LEVELS[-1]) -> Compiler:
        """A compiler for a target at a level, with the version of CUDA and the flags that the settings ask for."""
        cuda = cuda_for(self._cuda, driver_cuda(), arch)
        compiler = self._compilers.get((name, level, cuda))
        if compiler is None:
            compiler = COMPILERS[name].of_cuda(cuda)
            compiler = compiler if level == OPT_LEVELS[-1] else compiler.at_level(level)
            if extra := extra_flags(self._compiler_flags):
                compiler = compiler.with_flags(extra)
            self._compilers[name, level, cuda] = compiler
        return compiler

    def _prefix(
        self, family: Family, compiler: Compiler, level: int, arch: str, stated: Stated | None = None
    ) -> KeyPrefix:
        """The components that all kernels of a family, compiler at a level, and target have in common.

        A toolchain that is stated takes the place of the compiler's identity, and of nothing else.
        """
        identity = (family.name, compiler.name, level, arch, stated)
        prefix = self._prefixes.get(identity)
        if prefix is None:
            toolchain = compiler.fingerprint() if stated is None else stated.toolchain
            prefix = self._prefixes[identity] = KeyPrefix(
                (
                    ("family", family.name),
                    ("template", template_digest(family.template)),
                    *toolchain.components(),
                    ("flags", " ".join(compiler.flags)),
                    ("arch", arch),
                )
            )
        return prefix


def _cuda_major(version: str) -> int:
    """The major version of CUDA in a compiler's or driver's version; 0 where it is none."""
    major = version.partition(".")[0]
    return int(major) if major.isdecimal() and len(major) < 4 else 0


def _compiler_for(family: str | None, compiler: str | None) -> Compiler:
    """The compiler for a request that names a family, a compiler, both or neither, which is CUDA C++.

    A family goes with the compilers that take its template.

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

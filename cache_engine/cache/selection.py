"""Makes a key from a problem: chooses the family, config and compiler, and the toolchain that the key names."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cache.history import History
from cache_engine.cache.other_toolchains import OtherToolchains, Stated
from cache_engine.compilers import COMPILERS
from cache_engine.compilers.base import Compiler, Cuda, extra_flags
from cache_engine.compilers.contents import cuda_for
from cache_engine.errors import CompilerMissing, GemmCacheError, UsageError
from cache_engine.gpu.probe import driver_cuda
from cache_engine.kernels.family import Family
from cache_engine.kernels.select import FAMILIES, choose, turning_points
from cache_engine.kernels.source import fp8_constants, template_digest
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.fingerprint import Provenance
from cache_engine.model.gemm import OPT_LEVELS, GemmProblem, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey, Components, Constants, KeyPrefix
from cache_engine.model.measurement import COST_MODEL, GIVEN
from cache_engine.settings import FAST_MATH, LOCAL, Settings

if TYPE_CHECKING:
    from cache_engine.kernels.agreement import Factors

MOST_WAIT_MS = 3_600_000
# A serving process asks for a few thousand sizes; each takes about a kilobyte.
_MOST_KEPT = 8192

INSTALLED = "installed"
"""The origin of a key's toolchain if it is installed here; other keys name a toolchain of a pack or the store."""

Request = tuple[GemmProblem, str | None, str | None, KernelConfig | None]
"""Problem, family, compiler and config, as for ``Selector.select``."""


class _Choice(msgspec.Struct, frozen=True):
    """The choice of family, config and compiler for a problem. It does not include the compiler's build."""

    problem: GemmProblem
    family: Family
    config: KernelConfig
    compiler: Compiler
    config_from: str


class Selection(msgspec.Struct):
    """The family, config and compiler chosen for a problem, and the kernel's key. Small, since thousands are cached.

    Not frozen, because creating a frozen struct takes three times as long.
    """

    problem: GemmProblem
    family: Family
    config: KernelConfig
    compiler: Compiler
    prefix: KeyPrefix
    key: CacheKey
    config_from: str = COST_MODEL
    """The origin of the config: ``"given"``, ``"cost model"`` or ``"measured on …"``."""
    toolchain_from: str = INSTALLED
    """The origin of the toolchain in the key: ``"installed"``, ``"pack NAME"`` or ``"store"``."""

    @property
    def is_compilable(self) -> bool:
        """Whether this machine can compile the kernel of this key: the key names the compiler installed here."""
        return self.toolchain_from == INSTALLED

    @property
    def constants(self) -> Constants:
        """The constants of the kernel's template, which the key has after the prefix; made at each call."""
        return self.family.constants(self.problem, self.config)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.constants["KERNEL_NAME"])

    @property
    def extra_flags(self) -> tuple[str, ...]:
        """The compiler's flags that come from the settings."""
        return self.compiler.flags[len(COMPILERS[self.compiler.name].flags) :]

    @property
    def command(self) -> str:
        """The command line that compiles this kernel again, with every choice stated."""
        from cache_engine.cache.reproduction import command_of_choice

        problem, arch = RecordedProblem.of(self.problem), self.problem.arch or ""
        compiler, family = self.compiler.fingerprint(), self.family.name
        return command_of_choice(problem, arch, compiler, family, self.config, self.extra_flags)


class Selector:
    """Selects family, config, compiler and key for problems.

    Parts that many keys have in common are hashed once, and the latest selections are cached.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        history: History | None = None,
        elsewhere: OtherToolchains | None = None,
    ) -> None:
        """Hashes nothing yet.

        Args:
            settings: flags for every kernel, and the toolchains that keys may name; by default the default settings.
            history: measurements, which choose a config before the cost model does.
            elsewhere: the toolchains that a key may name besides the one installed here; by default none.
        """
        settings = settings or Settings()
        self._compiler_flags, self._cuda = settings.compiler_flags, settings.cuda
        self.history = history
        self.factors: Callable[[], Factors] = tuple if history is None else history.factors
        self._elsewhere = None if settings.toolchain == LOCAL else elsewhere
        self._installed_first = not settings.serves_any_toolchain
        self._compilers: dict[tuple[str, int, bool, Cuda], Compiler] = {}
        self._missing: dict[Compiler, str] = {}
        self._choices: dict[Request, _Choice] = {}
        self._kept: dict[Request, Selection] = {}
        self._prefixes: dict[tuple[str, Compiler, str, Stated | None], KeyPrefix] = {}

    def select(
        self,
        problem: GemmProblem,
        family: str | None,
        compiler: str | None,
        config: KernelConfig | None,
        *,
        missed: Collection[CacheKey] = (),
    ) -> Selection:
        """The selection for a problem whose target is set. Takes microseconds.

        Reads no entry. If keys may name other toolchains, it checks which of these keys a pack or the store has.

        Args:
            family, compiler: the names of a family and of a compiler; ``None`` to let the cache choose.
            missed: keys that were looked up and that no tier has.

        Raises:
            UsageError: when the request is invalid.
            CompilerMissing: when the compiler is not installed, and there is no other toolchain that the key could
                name.
        """
        asked = (problem, family, compiler, config)
        selection = self._kept.get(asked)
        if selection is not None and selection.key not in missed:
            return selection
        selection, is_final = self._resolved(self._choice(asked), missed)
        if is_final:
            self._keep(asked, selection)
        return selection

    def _keep(self, asked: Request, selection: Selection) -> None:
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[asked] = selection

    def select_installed(
        self, problem: GemmProblem, family: str | None, compiler: str | None, config: KernelConfig | None
    ) -> Selection:
        """As ``select``, with the compiler installed here in the key."""
        return self._keyed(self._choice((problem, family, compiler, config)), None)

    def select_elsewhere(self, selection: Selection, elsewhere: OtherToolchains) -> Selection | None:
        """The selection of the same kernel by another toolchain, if a pack or the store has it; else ``None``."""
        name = selection.compiler.name
        every = self.of_other_toolchains(selection, (*elsewhere.of_packs(name), *elsewhere.of_store(name)))
        return next((found for found in every if elsewhere.has(found.key)), None)

    def of_other_toolchains(self, selection: Selection, every: Iterable[Stated]) -> Iterator[Selection]:
        """The selection of the same kernel for each of the toolchains ``every``."""
        s = selection
        choice = _Choice(s.problem, s.family, s.config, s.compiler, s.config_from)
        return map(partial(self._keyed, choice), every)

    def better_here(self, asked: Request, selection: Selection) -> Selection | None:
        """The selection with the compiler installed here, if ``selection`` names another build; else ``None``."""
        if selection.is_compilable or not self._installed_first or selection.compiler in self._missing:
            return None
        return self.select_installed(*asked)

    def prefer(self, asked: Request, selection: Selection) -> None:
        """From now on, selects the kernel that was compiled here, in place of a pack's kernel of another build."""
        if self._installed_first:
            self._keep(asked, selection)

    def _resolved(self, choice: _Choice, missed: Collection[CacheKey]) -> tuple[Selection, bool]:
        """The selection for a choice, and whether it is final: its entry exists, or no other key is possible."""
        elsewhere = self._elsewhere
        if elsewhere is None:
            return self._keyed(choice, None), True
        if self._installed_first and choice.compiler not in self._missing:
            with suppress(CompilerMissing):  # a pack may have the kernel
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

    def _here_or_packed(self, choice: _Choice, elsewhere: OtherToolchains, missed: Collection[CacheKey]) -> Selection:
        """The selection with the installed compiler; or with a build that packs name, if only that has an entry."""
        here, packed = self._keyed(choice, None), elsewhere.of_packs(choice.compiler.name)
        if packed and not elsewhere.has(here.key):
            for stated in packed:
                selection = self._keyed(choice, stated)
                if selection.key not in missed and elsewhere.has(selection.key) and self._loads(choice, stated):
                    return selection
        return here

    @staticmethod
    def _loads(choice: _Choice, stated: Stated) -> bool:
        """Whether the driver here can load a toolchain's kernels: it cannot if their major version of CUDA is newer."""
        made, here = (_cuda_major(one.version) for one in (stated.toolchain, choice.compiler.fingerprint()))
        if choice.compiler.name == "triton" or made <= here:
            return True
        from cache_engine.gpu.probe import gpu

        device = gpu()
        return isinstance(device, str) or made <= _cuda_major(device.driver)

    def _candidates(self, choice: _Choice, elsewhere: OtherToolchains) -> Iterator[Selection]:
        """The selections of a choice, one for each toolchain that its key may name, in the order of trial."""
        for stated in elsewhere.of_packs(choice.compiler.name):
            yield self._keyed(choice, stated)
        with suppress(CompilerMissing):
            yield self._keyed_if_installed(choice)
        for stated in elsewhere.of_store(choice.compiler.name):
            yield self._keyed(choice, stated)

    def _keyed(self, choice: _Choice, stated: Stated | None) -> Selection:
        """The selection of a choice with the toolchain ``stated`` in its key, else with the compiler installed here."""
        c = choice
        prefix = self._prefix(c.family, c.compiler, c.problem.arch or "", stated)
        source = INSTALLED if stated is None else stated.source
        key = prefix.key(c.family.constants(c.problem, c.config))
        return Selection(c.problem, c.family, c.config, c.compiler, prefix, key, c.config_from, toolchain_from=source)

    def _keyed_if_installed(self, choice: _Choice) -> Selection:
        """As ``_keyed`` with the compiler installed here; remembers if this compiler is missing."""
        if choice.compiler in self._missing:
            raise CompilerMissing(self._missing[choice.compiler])
        try:
            return self._keyed(choice, None)
        except CompilerMissing as error:
            self._missing[choice.compiler] = str(error)
            raise

    def _choice(self, asked: Request) -> _Choice:
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
        """The choice that the arguments and the cost model give, without measurements."""
        named = _compiler_for(family, compiler).name
        chosen_compiler = self.compiler(named, problem.arch or "", problem.opt_level, problem.fast_math)
        factors, config_from = (self.factors(), COST_MODEL) if config is None else ((), GIVEN)
        chosen, chosen_config = choose(problem, family, config, chosen_compiler.takes, factors)
        return _Choice(problem, chosen, chosen_config, chosen_compiler, config_from)

    def _measured(
        self, modelled: _Choice, family: str | None, compiler: str | None, history: History
    ) -> _Choice | None:
        """The choice that measurements give, not the cost model; ``None`` if there are too few measurements.

        One timing alone does not decide: the timings of a size must include one of the default family whose config was
        not given by hand. Otherwise a bad config, if it were the only one timed, would always be used. Only timings
        with the family's own compiler count, unless the caller asked for another.
        """
        for ranked in history.rankings(modelled.problem):
            if not any(
                (one.family, one.compiler) == (modelled.family.name, modelled.compiler.name)
                and one.config_from != GIVEN
                for one in ranked
            ):
                continue
            for one in ranked:
                # A measured config may not be feasible any more, or its compiler not installed.
                with suppress(GemmCacheError):
                    if family in (None, one.family) and _compiler_for(one.family, compiler).name == one.compiler:
                        choice = self._modelled(modelled.problem, one.family, one.compiler, one.config)
                        self._check_available(choice)
                        named = modelled.family.constants(modelled.problem, modelled.config)
                        why = history.promoted(one, named["KERNEL_NAME"])
                        return msgspec.structs.replace(choice, config_from=why)
        return None

    def turning_points(
        self, problem: GemmProblem, last: int, family: str | None, compiler: str | None
    ) -> Sequence[int]:
        """The problem's m, and each m up to ``last`` that may get another kernel than m - 1; ascending.

        All m between two of them have the same family, config and constants, except for the widths of reads.

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
        """Checks that a choice's compiler is installed, or that a pack or the store has kernels made by it.

        Raises:
            CompilerMissing: when neither is the case, because then no key can be made.
        """
        try:
            self._keyed_if_installed(choice)
        except CompilerMissing:
            elsewhere, name = self._elsewhere, choice.compiler.name
            if elsewhere is None or not (elsewhere.of_packs(name) or elsewhere.of_store(name)):
                raise

    def forget(self) -> None:
        """Reads the measurements again at the next selection, because new ones were stored."""
        if self.history is not None:
            self.history.forget()
            self._choices.clear()
            self._kept.clear()

    def is_stale(self, record: Record) -> bool:
        """Whether no request here can hit the entry, because its compiler, template or flags differ from those here.

        A difference in fast math makes no entry stale, since any problem can ask for fast math. If the compiler that
        made the entry is not installed here, the result is false, because the compilers cannot be compared.
        """
        stated = None
        if self._elsewhere is not None and not self._installed_first:
            stated = Stated(Provenance.of(record.components).toolchain, "")
        p = record.problem
        try:
            components = self.present(
                record.family, record.compiler, p.opt_level, record.arch, bool(p.fast_math), stated=stated
            )
        except CompilerMissing:
            return False
        if components is None or record.components[: len(components)] != components:
            return True
        made_of = dict(record.components)
        return any(made_of.get(label, text) != text for label, text in fp8_constants().items())

    def present(
        self, family: str, compiler: str, level: int, arch: str, fast_math: bool | None = None, *,
        stated: Stated | None = None,
    ) -> Components | None:  # fmt: skip
        """The first key components here for a family, compiler, level and target; ``None`` if a name is unknown.

        Args:
            fast_math: as for ``GemmProblem``.
            stated: a toolchain to name in place of the one installed here.

        Raises:
            CompilerMissing: when the compiler is not installed.
        """
        if family not in FAMILIES or compiler not in COMPILERS or level not in OPT_LEVELS:
            return None
        made_by = self.compiler(compiler, arch, level, fast_math)
        if stated is None and made_by in self._missing:
            raise CompilerMissing(self._missing[made_by])
        try:
            return self._prefix(FAMILIES[family], made_by, arch, stated).components
        except CompilerMissing as error:
            self._missing[made_by] = str(error)  # a search takes time, and this is called for every record
            raise

    def compiler(self, name: str, arch: str, level: int = OPT_LEVELS[-1], fast_math: bool | None = None) -> Compiler:
        """A compiler for a target at an optimisation level, with the version of CUDA and the flags from the settings.

        Raises:
            UsageError: when the compiler has no levels, or takes no flags.
        """
        cuda = cuda_for(self._cuda, driver_cuda(), arch)
        fast = FAST_MATH in self._compiler_flags if fast_math is None else fast_math
        compiler = self._compilers.get((name, level, fast, cuda))
        if compiler is None:
            compiler = COMPILERS[name].of_cuda(cuda)
            compiler = compiler if level == OPT_LEVELS[-1] else compiler.at_level(level)
            others = (flag for flag in self._compiler_flags if flag != FAST_MATH)
            if extra := extra_flags((*([FAST_MATH] if fast else ()), *others)):
                compiler = compiler.with_flags(extra)
            self._compilers[name, level, fast, cuda] = compiler
        return compiler

    def _prefix(self, family: Family, compiler: Compiler, arch: str, stated: Stated | None = None) -> KeyPrefix:
        """The key components that all kernels of a family, compiler with flags, and target have in common.

        The toolchain ``stated``, if given, takes the place of the installed compiler's in these components.
        """
        identity = (family.name, compiler, arch, stated)
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
    """The major version of CUDA in the version text of a compiler or driver; 0 if there is none."""
    major = version.partition(".")[0]
    return int(major) if major.isdecimal() and len(major) < 4 else 0


def _compiler_for(family: str | None, compiler: str | None) -> Compiler:
    """The compiler for a request: ``compiler`` if named, else one for the family, else the default one for CUDA C++.

    Raises:
        UsageError: when the compiler does not exist, or cannot compile the family.
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


def check_asked(problem: object, config: object) -> None:
    """Checks the Python types of a problem and of a config.

    Raises:
        UsageError: with the value that was given.
    """
    if not isinstance(problem, GemmProblem):
        raise UsageError(f"a kernel is asked for with a GemmProblem, not with {type(problem).__name__}")
    if config is not None and not isinstance(config, KernelConfig):
        raise UsageError(f"config is a {type(config).__name__}; it must be a KernelConfig")


def check_wait(wait_ms: object, wait: object = None) -> float | None:
    """The milliseconds to wait, as given; ``None`` for no limit.

    Args:
        wait: the old name of ``wait_ms``; using it logs a warning that points to the caller.

    Raises:
        UsageError: with the value that was given.
    """
    if wait is not None:
        warnings.warn("wait is wait_ms now; the old name goes with 0.4", DeprecationWarning, stacklevel=3)
        wait_ms = wait
    if wait_ms is None:
        return None
    if isinstance(wait_ms, bool) or not isinstance(wait_ms, int | float) or not 0 <= wait_ms <= MOST_WAIT_MS:
        wanted = f"a number of milliseconds from 0 to {MOST_WAIT_MS:,}, or None"
        raise UsageError(f"wait_ms is {wait_ms!r}; it must be {wanted}")
    return float(wait_ms)


LOOK_AGAIN_S = 60.0
"""Seconds after which a missing kernel is looked up again, because another process may have compiled it."""

# ---- Exact kernels (for one m) in place of others, if this store's timings show that they are faster ----
# Only measured times count: both kernels must have been timed for exactly this m on one device.

_REPLACEABLE = (Specialisation.NK, Specialisation.BUCKETED)

_Offer = tuple[Selection | None, float]
"""The exact kernel, and the time (``time.monotonic``) at which to look it up again.

The time is 0 if the store has the kernel, infinity if there is no such kernel.
"""


class ExactKernels:
    """Finds exact kernels (for one m only) that serve in place of others. Safe to use from several threads."""

    def __init__(self, selector: Selector, elsewhere: OtherToolchains) -> None:
        """Reads nothing yet."""
        self._selector, self._elsewhere = selector, elsewhere
        self.forget()

    def forget(self) -> None:
        """Forgets timings and stored kernels, so that the next use reads them again."""
        self._is_possible: bool | None = None
        self._kept: dict[Request, _Offer] = {}

    def there(self, asked: Request) -> Selection | None:
        """The exact kernel for a request, if it was measured to be faster and is stored or in a pack; else ``None``."""
        if not self._may_be_any():
            return None
        exact, look_at = self._kept.get(asked) or self._keep(asked, self._measured(asked))
        if look_at and exact is not None and time.monotonic() >= look_at:
            exact, look_at = self._keep(asked, exact)
        return None if look_at else exact

    def gone(self, asked: Request) -> None:
        """Remembers that a request's exact kernel was deleted, so that the selected kernel serves again."""
        exact, _ = self._kept.get(asked, (None, 0.0))
        self._kept[asked] = exact, time.monotonic() + LOOK_AGAIN_S

    def measured(self, asked: Request) -> Selection | None:
        """The exact kernel that was measured to be faster than the selected one, stored or not; else ``None``."""
        if not self._may_be_any():
            return None
        kept = self._kept.get(asked)
        return self._measured(asked) if kept is None else kept[0]

    def _may_be_any(self) -> bool:
        """Whether any exact kernel was timed; read from the measurements once."""
        if self._is_possible is None:
            history = self._selector.history
            self._is_possible = history is not None and history.has_exact
        return self._is_possible

    def _measured(self, asked: Request) -> Selection | None:
        problem, family, compiler, config = asked
        history = self._selector.history
        if history is None or config is not None or problem.specialisation not in _REPLACEABLE:
            return None
        try:
            selected = self._selector.select(*asked)
            exact = self._selector.select(replace(problem, specialisation=Specialisation.EXACT), family, compiler, None)
        except GemmCacheError:
            return None
        present_us, exact_us = (
            history.median_us(one.problem, one.family.name, one.compiler.name, one.config) for one in (selected, exact)
        )
        return exact if present_us is not None and exact_us is not None and exact_us < present_us else None

    def _keep(self, asked: Request, exact: Selection | None) -> _Offer:
        look_at = math.inf
        if exact is not None:
            look_at = 0.0 if self._elsewhere.has(exact.key) else time.monotonic() + LOOK_AGAIN_S
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[asked] = exact, look_at
        return exact, look_at

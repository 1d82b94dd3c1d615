"""Compares packs with this machine: how many of their kernels can serve here, and why the others cannot."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from cache_engine.cache.other_toolchains import OtherToolchains, Stated
from cache_engine.cache.selection import Selection, Selector
from cache_engine.compilers import COMPILERS
from cache_engine.errors import CompilerMissing, CorruptEntry, GemmCacheError, PackUnusable, Unproved
from cache_engine.model.fingerprint import Provenance, ToolchainFingerprint
from cache_engine.model.gemm import OPT_LEVELS
from cache_engine.settings import FAST_MATH, PACKS, Settings
from cache_engine.store.pack import Pack
from cache_engine.units import counted, printable

_log = logging.getLogger(__name__)

_MOST_PROVED = 100  # signatures of a pack that are checked when it is opened: 30 ms if none is good
_BUILD_DIGITS = 12
_DIGEST = re.compile(f"([0-9a-f]{{{_BUILD_DIGITS}}})[0-9a-f]{{20,}}")
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class PackState:
    """The comparison of a pack with this machine and its settings.

    Attributes:
        text: the comparison as a sentence, for people.
        entries: the number of kernels in the pack.
        usable: the number of kernels that can serve here: their schema, template, flags and toolchain may be in a key
            made here. Only kernels counted in ``known`` are compared.
        usable_with_any_toolchain: the same with the setting ``toolchain = pack``.
        known: the number of kernels whose record says how they were made.
    """

    text: str
    entries: int
    usable: int
    usable_with_any_toolchain: int
    known: int

    @property
    def is_whole(self) -> bool:
        """Whether every compared kernel can serve here."""
        return self.usable == self.known


@dataclass(frozen=True, slots=True)
class Factor:
    """A key component that differs between kernels of a pack and kernels asked for here."""

    name: str
    in_pack: str
    here: str

    def __str__(self) -> str:
        """The difference as text, safe for a terminal."""
        return f"{self.name.replace('_', ' ')} is {_short(self.in_pack)} in the pack and {_short(self.here)} here"


def pack_state(pack: Pack, settings: Settings) -> PackState:
    """Compares a pack with this machine: how many of its kernels lookups with these settings can find.

    Raises:
        OSError: when the pack cannot be read.
    """
    selector = Selector(settings)
    usable, with_any, known = 0, 0, 0
    toolchains: Counter[ToolchainFingerprint] = Counter()
    for made, entries in pack.made_with.items():
        toolchains[made.toolchain] += entries
        known += entries
        with_any += entries * _can_be_found(selector, made, any_toolchain=True)
        usable += entries * _can_be_found(selector, made, any_toolchain=settings.serves_packs_of_any_toolchain)
    text = f"{counted(len(pack), 'kernel')}, made by {_named(toolchains)}"
    if usable != known:
        text += f"; {_here(selector, toolchains)}{usable:,} of {known:,} can serve"
        if with_any > usable:
            text += f", {with_any:,} with GEMM_CACHE_TOOLCHAIN=pack"
        if with_any < known:
            text += f"; {known - with_any:,} have other templates or flags"
    return PackState(text, len(pack), usable, with_any, known)


def check_packs(elsewhere: OtherToolchains, settings: Settings) -> None:
    """Warns of each pack with no kernel that can serve here; the text of a later ``NotCached`` has the reason too.

    Raises:
        PackUnusable: when only packs are used, and no kernel in them can serve here.
    """
    for pack in elsewhere.packs:
        try:
            state = pack_state(pack, settings)
            why = _unproved(pack) if state.usable else state.text
        except OSError as error:
            why = f"it cannot be read: {error.strerror or error}"
        if why:
            elsewhere.useless[pack.path] = f"pack {pack.path.name} can serve nothing here: {why}"
    is_any = len(elsewhere.useless) < len(elsewhere.packs)
    if settings.enable_caching == PACKS and not is_any and not settings.reads_remote:
        places = ", ".join(map(str, settings.packs))
        reasons = "; ".join((*elsewhere.refused, *elsewhere.useless.values())) or f"there is no pack in {places}"
        raise PackUnusable(f"only packs are used (enable_caching = packs), and none can be: {reasons}")
    for why in elsewhere.useless.values():
        _log.warning("%s", why)


def _unproved(pack: Pack) -> str:
    """The reason why no kernel among a pack's first ones has an acceptable signature; empty if one has."""
    why = ""
    for number in range(min(len(pack), _MOST_PROVED)):
        with suppress(CorruptEntry):
            data = pack.record_data(pack.row(number))
            try:
                pack.prove(data)
            except Unproved as error:
                why = why or str(error)
            else:
                return ""
    return why


def refusals(elsewhere: OtherToolchains, selector: Selector, selection: Selection) -> Iterator[str]:
    """The reasons why packs that have a kernel do not serve it: damaged, unsigned, or of another toolchain."""
    others = selector.of_other_toolchains(selection, elsewhere.of_packs(selection.compiler.name))
    for one in {each.key: each for each in (*others, selection)}.values():
        for pack in elsewhere.packs:
            has = f"pack {pack.path.name} has this kernel"
            try:
                loaded = pack.get(one.key)
            except CorruptEntry as error:
                yield f"{has}, which cannot be used: {error}"
            except OSError as error:
                yield f"pack {pack.path.name} cannot be read: {error.strerror or error}"
            else:
                if loaded is not None and one.key != selection.key:
                    yield f"{has}, {_made(one)}"


def refused_in_store(selection: Selection) -> str:
    """A sentence: the store has the kernel, but made by another toolchain, so it does not serve."""
    return f"the store has this kernel, {_made(selection)}"


def _made(selection: Selection) -> str:
    made = Provenance.of(selection.prefix.components).toolchain
    return f"made by {toolchain_in_words(made)}; GEMM_CACHE_TOOLCHAIN=pack serves it"


def toolchain_in_words(toolchain: ToolchainFingerprint) -> str:
    """A compiler's name, version and the first digits of its build, safe for a terminal."""
    words = f"{toolchain.compiler} {toolchain.version} (build {toolchain.build[:_BUILD_DIGITS]})"
    return printable(words + (" with variables of the environment" if toolchain.environment else ""))


def _can_be_found(selector: Selector, made: Provenance, *, any_toolchain: bool) -> bool:
    """Whether a key made here can name a kernel with this provenance; the target is not compared."""
    return not differing(selector, made, any_toolchain=any_toolchain)


def differing(selector: Selector, made: Provenance, *, any_toolchain: bool) -> tuple[Factor, ...]:
    """The key components in which a kernel's provenance differs from the most similar key made here."""
    stated = Stated(made.toolchain, "") if any_toolchain else None
    nearest = (Factor("family", f"{made.family} by {made.compiler}", "unknown"),)
    found = []
    # A problem can ask for fast math. One that does not follows the setting, so other flags are compared without it.
    fast = FAST_MATH in made.flags.split() or None
    for level in OPT_LEVELS:
        try:
            components = selector.present(made.family, made.compiler, level, "any", fast, stated=stated)
        except CompilerMissing:
            return (Factor("compiler", made.compiler, "not installed"),)
        except (GemmCacheError, ValueError):  # it has no levels, or the record is not a real one
            continue
        if components is not None:
            found.append(_factors(made, Provenance.of(components)))
    return min(found, key=len, default=nearest)


def _factors(made: Provenance, here: Provenance) -> tuple[Factor, ...]:
    pairs = ((name, getattr(made, name), getattr(here, name)) for name in Provenance.__struct_fields__)
    return tuple(Factor(name, packed, now) for name, packed, now in pairs if packed != now)


def _short(value: str) -> str:
    """A value for a sentence; a digest is shortened."""
    return printable(_DIGEST.sub(r"\1", value)) or "nothing"


def _named(toolchains: Counter[ToolchainFingerprint]) -> str:
    names = [toolchain_in_words(toolchain) for toolchain, _ in toolchains.most_common(_MOST_NAMED)]
    more = len(toolchains) - len(names)
    return ", ".join(names) + (f" and {more:,} other builds" if more > 0 else "") if names else "unknown compilers"


def _here(selector: Selector, toolchains: Counter[ToolchainFingerprint]) -> str:
    """A text with the installed versions of the compilers in ``toolchains``."""
    found = []
    for name in sorted({toolchain.compiler for toolchain in toolchains} & COMPILERS.keys()):
        try:
            found.append(f"here is {toolchain_in_words(selector.compiler(name, '').fingerprint())}; ")
        except CompilerMissing:
            found.append(f"{name} is not installed here; ")
    return "".join(found)

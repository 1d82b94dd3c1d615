"""Packs in words: what made their kernels, and how many of them can serve here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from cache_engine.compilers import COMPILERS
from cache_engine.config import Settings
from cache_engine.engine.cache import Cache
from cache_engine.engine.elsewhere import Stated
from cache_engine.engine.selection import Selection, Selector
from cache_engine.errors import CompilerMissing, CorruptEntry, GemmCacheError
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.model.gemm import OPT_LEVELS
from cache_engine.model.provenance import Provenance
from cache_engine.store.pack import Pack
from cache_engine.trust.signers import Signed, Standing, TrustedSigners, named_by
from cache_engine.units import counted, printable

_BUILD_DIGITS = 12
_DIGEST = re.compile(f"([0-9a-f]{{{_BUILD_DIGITS}}})[0-9a-f]{{20,}}")
_MOST_NAMED = 3
_MOST_SIGNATURES = 1_000  # a third of a second


@dataclass(frozen=True, slots=True)
class PackState:
    """A pack, compared with this machine and its settings.

    Attributes:
        text: all of it in a sentence, for people.
        entries: how many kernels it has.
        usable: how many of those whose record says how it was made have the schema, template, flags and toolchain of
            keys made here.
        usable_with_any_toolchain: the same with ``toolchain = pack``.
        known: how many say how they were made.
    """

    text: str
    entries: int
    usable: int
    usable_with_any_toolchain: int
    known: int

    @property
    def is_whole(self) -> bool:
        """Whether every kernel can serve."""
        return self.usable == self.known


@dataclass(frozen=True, slots=True)
class Factor:
    """A component of keys that differs between kernels of a pack and those asked for here."""

    name: str
    in_pack: str
    here: str

    def __str__(self) -> str:
        """In words, safe for a terminal."""
        return f"{self.name.replace('_', ' ')} is {_short(self.in_pack)} in the pack and {_short(self.here)} here"


@dataclass(frozen=True, slots=True)
class Carried:
    """Kernels of a pack for one target, made in one way.

    Attributes:
        differs: what keeps lookups here from finding them; empty when nothing does.
    """

    arch: str
    made: Provenance
    entries: int
    differs: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether a pack would be used here.

    Attributes:
        carried: its kernels by target and how they were made, most first; of more than 10,000, a sample.
        signed: by whom they are signed, in words; empty where the settings ask for no signature.
        reasons: why lookups here would not be served from it, in words; none when they would.
    """

    carried: tuple[Carried, ...]
    signed: str
    reasons: tuple[str, ...]


def preflight(pack: Pack, settings: Settings, archs: Collection[str]) -> Preflight:
    """Compares a pack with this machine and the settings, before anything asks for its kernels.

    Args:
        archs: the targets that kernels will be asked for. Each must have one in the pack that lookups can find.

    Raises:
        OSError: when the pack cannot be read.
        UsageError, ExtraMissing: when signatures are asked for and cannot be checked.
    """
    selector = Selector(settings)
    counts = Counter((record.arch, Provenance.of(record.components)) for record in pack.records())
    carried = tuple(
        Carried(arch, made, entries, _differing(selector, made, any_toolchain=settings.serves_any_toolchain))
        for (arch, made), entries in counts.most_common()
    )
    reasons = [] if settings.enable_caching else ["caching is switched off (enable_caching)"]
    for arch in dict.fromkeys(archs):
        there = [one for one in carried if one.arch == arch]
        if not there:
            has = ", ".join(sorted({printable(one.arch) for one in carried})) or "no kernel that can be read"
            reasons.append(f"it has no kernel for {arch}; it has {has}")
        elif all(one.differs for one in there):
            nearest = min(there, key=lambda one: len(one.differs))
            reasons.append(f"no kernel for {arch} can be found: {'; '.join(map(str, nearest.differs))}")
    signed = ""
    if settings.trusted_signers is not None:
        is_signed, signed = signed_by(pack, named_by(settings))
        if not is_signed:
            reasons.append(signed)
    return Preflight(carried, signed, tuple(reasons))


def pack_state(pack: Pack, settings: Settings) -> PackState:
    """How a pack stands to this machine: what made it, and how many of its kernels lookups under the settings can find.

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
        usable += entries * _can_be_found(selector, made, any_toolchain=settings.serves_any_toolchain)
    text = f"{counted(len(pack), 'kernel')}, made by {_named(toolchains)}"
    if usable != known:
        text += f"; {_here(selector, toolchains)}{usable:,} of {known:,} can serve"
        if with_any > usable:
            text += f", {with_any:,} with GEMM_CACHE_TOOLCHAIN=pack"
        if with_any < known:
            text += f"; {known - with_any:,} have other templates or flags"
    return PackState(text, len(pack), usable, with_any, known)


def signed_by(pack: Pack, signers: TrustedSigners) -> tuple[bool, str]:
    """Whether trusted signers signed the kernels of a pack, and who, in words; of its first 1,000.

    Raises:
        OSError: when the pack cannot be read.
        UsageError: when the file of signers was changed and cannot be read.
    """
    found: Counter[Signed] = Counter()
    for number in range(min(len(pack), _MOST_SIGNATURES)):
        with suppress(CorruptEntry):
            found[signers.check(pack.record_data(pack.row(number)))] += 1
    bad = [signed for signed in found if signed.standing is not Standing.GOOD]
    if bad:
        refused = sum(found[signed] for signed in bad)
        return False, f"{refused:,} of {sum(found.values()):,} are refused: {bad[0]}"
    return True, f"signed by {', '.join(sorted({signed.signer for signed in found}))}" if found else "empty"


def notes_on_packs(cache: Cache, selection: Selection) -> tuple[str, ...]:
    """What packs have to do with a miss: which has the kernel, made by another toolchain, and which cannot serve."""
    notes = []
    there = cache.made_elsewhere(selection)
    if there is not None and not cache.settings.serves_any_toolchain:
        made = Provenance.of(there.prefix.components).toolchain
        source = "the store" if there.toolchain_from == "store" else there.toolchain_from
        notes.append(
            f"{source} has this kernel, made by {toolchain_in_words(made)}; GEMM_CACHE_TOOLCHAIN=pack serves it"
        )
    for pack in cache.packs:
        try:
            state = pack_state(pack, cache.settings)
        except OSError as error:
            notes.append(f"pack {pack.path.name} cannot be read: {error.strerror or error}")
        else:
            if not state.is_whole:
                notes.append(f"pack {pack.path.name}: {state.text}")
    return tuple(notes)


def toolchain_in_words(toolchain: ToolchainFingerprint) -> str:
    """A compiler with its version and the start of its build, safe for a terminal."""
    words = f"{toolchain.compiler} {toolchain.version} (build {toolchain.build[:_BUILD_DIGITS]})"
    return printable(words + (" with variables of the environment" if toolchain.environment else ""))


def _can_be_found(selector: Selector, made: Provenance, *, any_toolchain: bool) -> bool:
    """Whether a key made here can be of a kernel made so; the target is the lookup's."""
    return not _differing(selector, made, any_toolchain=any_toolchain)


def _differing(selector: Selector, made: Provenance, *, any_toolchain: bool) -> tuple[Factor, ...]:
    """What differs between a kernel made so and the nearest of those that keys made here are of."""
    stated = Stated(made.toolchain, "") if any_toolchain else None
    nearest = (Factor("family", f"{made.family} by {made.compiler}", "unknown"),)
    found = []
    for level in OPT_LEVELS:
        try:
            components = selector.present(made.family, made.compiler, level, "any", stated=stated)
        except CompilerMissing:
            return (Factor("compiler", made.compiler, "not installed"),)
        except (GemmCacheError, ValueError):  # has no levels, or a record made up
            continue
        if components is not None:
            found.append(_factors(made, Provenance.of(components)))
    return min(found, key=len, default=nearest)


def _factors(made: Provenance, here: Provenance) -> tuple[Factor, ...]:
    pairs = ((name, getattr(made, name), getattr(here, name)) for name in Provenance.__struct_fields__)
    return tuple(Factor(name, packed, now) for name, packed, now in pairs if packed != now)


def _short(value: str) -> str:
    """A value in a sentence; of digests their start."""
    return printable(_DIGEST.sub(r"\1", value)) or "nothing"


def _named(toolchains: Counter[ToolchainFingerprint]) -> str:
    names = [toolchain_in_words(toolchain) for toolchain, _ in toolchains.most_common(_MOST_NAMED)]
    more = len(toolchains) - len(names)
    return ", ".join(names) + (f" and {more:,} other builds" if more > 0 else "") if names else "unknown compilers"


def _here(selector: Selector, toolchains: Counter[ToolchainFingerprint]) -> str:
    """What is installed here of the compilers named."""
    found = []
    for name in sorted({toolchain.compiler for toolchain in toolchains} & COMPILERS.keys()):
        try:
            found.append(f"here is {toolchain_in_words(selector.compiler(name, '').fingerprint())}; ")
        except CompilerMissing:
            found.append(f"{name} is not installed here; ")
    return "".join(found)

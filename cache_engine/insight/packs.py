"""Packs in words: what made their kernels, and how many of them can serve here."""

from __future__ import annotations

from collections import Counter
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
from cache_engine.trust.signers import Signed, Standing, TrustedSigners
from cache_engine.units import counted, printable

_BUILD_DIGITS = 12
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
        text += f"; {_here(toolchains)}{usable:,} of {known:,} can serve"
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
    stated = Stated(made.toolchain, "") if any_toolchain else None
    for level in OPT_LEVELS:
        try:
            components = selector.present(made.family, made.compiler, level, "any", stated=stated)
        except (GemmCacheError, ValueError):  # not installed, has no levels, or a record made up
            continue
        if components is not None and Provenance.of(components) == made:
            return True
    return False


def _named(toolchains: Counter[ToolchainFingerprint]) -> str:
    names = [toolchain_in_words(toolchain) for toolchain, _ in toolchains.most_common(_MOST_NAMED)]
    more = len(toolchains) - len(names)
    return ", ".join(names) + (f" and {more:,} other builds" if more > 0 else "") if names else "unknown compilers"


def _here(toolchains: Counter[ToolchainFingerprint]) -> str:
    """What is installed here of the compilers named."""
    found = []
    for name in sorted({toolchain.compiler for toolchain in toolchains} & COMPILERS.keys()):
        try:
            found.append(f"here is {toolchain_in_words(COMPILERS[name].fingerprint())}; ")
        except CompilerMissing:
            found.append(f"{name} is not installed here; ")
    return "".join(found)

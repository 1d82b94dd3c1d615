"""Documents of kernels that move between stores, packs and remotes, and of who signed them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cache.remote.base import without_query
from cache_engine.cli.documents import filled
from cache_engine.model.events import REMOTE, REMOTE_DOWN, REMOTE_UP, Event, Tally
from cache_engine.model.key import CacheKey
from cache_engine.store.signatures.signers import Signed, Standing
from cache_engine.units import counted
from cache_engine.upkeep.packs import Refused

if TYPE_CHECKING:
    from cache_engine.cache.remote.moving import Compared, Pushed
    from cache_engine.insight.packs import Preflight
    from cache_engine.store.pack import Pack
    from cache_engine.team.submitting import Farmed
    from cache_engine.upkeep.packs import Exported, Imported


class ExportReport(msgspec.Struct, kw_only=True):
    """What ``export`` prints.

    Attributes:
        signed_by: the fingerprint of the key, empty without ``--sign``.
        missing: with ``--for``, the keys that the model needs and the store lacks.
    """

    file: str
    bytes: int
    entries: int
    refused: list[Refused]
    signed_by: str = ""
    missing: list[CacheKey] = []


class DifferingFactor(msgspec.Struct, kw_only=True):
    """A component of keys that differs between kernels of a pack and those asked for here."""

    factor: str
    in_pack: str
    here: str


class CarriedRow(msgspec.Struct, kw_only=True):
    """Kernels of a pack for one target, made in one way; ``differs`` keeps lookups here from finding them."""

    arch: str
    family: str
    compiler: str
    compiler_version: str
    compiler_build: str
    kernels: int
    differs: list[DifferingFactor]


class PreflightReport(msgspec.Struct, kw_only=True):
    """What ``preflight`` prints.

    Attributes:
        used: whether lookups here would be served from the pack.
        reasons: why not.
        targets: those that kernels will be asked for.
        carried: its kernels, most first; ``sampled`` when only its first 10,000 were read.
        signed: by whom, in words; empty where the settings ask for no signature.
        needed, found: with ``--for``, how many kernels the model needs, and how many of them the pack has.
    """

    file: str
    kernels: int
    used: bool
    reasons: list[str]
    targets: list[str]
    carried: list[CarriedRow]
    sampled: bool
    signed: str
    needed: int | None = None
    found: int | None = None


class ImportReport(msgspec.Struct, kw_only=True):
    """What ``import`` prints. ``left`` is what is no kernel, in a cache of Triton's own."""

    file: str
    dry_run: bool
    taken: int
    taken_bytes: int
    present: int
    refused: Sequence[Refused]
    left: Sequence[Refused] = ()


class RemoteReport(msgspec.Struct, kw_only=True):
    """What ``remote status`` prints.

    Attributes:
        there, there_bytes: entries of the remote. only_here, only_there: entries that the other lacks.
        others: objects in the remote's folder that are no entries.
        mode: the setting ``remote_mode``.
        hits, failures: of lookups of this store's processes in any remote. sent, dropped: what they compiled.
        down_at, down_why: when a process last stopped asking this remote, in seconds since 1970, and why; up_at: when
            one last asked it again after that. 0 is never, as far as the journal knows.
        is_used: whether lookups ask this remote: the setting ``remote`` names it.
        held_until: until when processes that start do not ask this remote at first, as it has just failed another; 0
            where they ask.
    """

    url: str
    there: int
    there_bytes: int
    both: int
    only_here: int
    only_there: int
    others: int
    mode: str
    hits: int
    failures: int
    sent: int
    dropped: int
    down_at: float
    down_why: str
    up_at: float
    is_used: bool = False
    held_until: float = 0.0


class PushReport(msgspec.Struct, kw_only=True):
    """What ``remote push`` prints; ``present`` counts those that the remote had already."""

    url: str
    sent: int
    sent_bytes: int
    present: int
    refused: Sequence[Refused]


class PullReport(msgspec.Struct, kw_only=True):
    """What ``remote pull`` prints; ``present`` counts those that the store had already."""

    url: str
    dry_run: bool
    taken: int
    taken_bytes: int
    present: int
    refused: Sequence[Refused]


class RemoteVerifyReport(msgspec.Struct, kw_only=True):
    """What ``remote verify`` prints.

    Attributes:
        there: entries of the remote. checked: those of the sample. code_bytes: compiled code of those that are sound.
        refused: those that may not be served, each with the reason.
        rebuilt: how many were compiled again to the same bytes; not_rebuilt: how many could not be compiled here.
    """

    url: str
    there: int
    checked: int
    code_bytes: int
    refused: list[Refused]
    rebuilt: int
    not_rebuilt: int


class RemoteGcReport(msgspec.Struct, kw_only=True):
    """What ``remote gc`` prints; ``keys`` are those deleted, or that would be, the oldest first."""

    url: str
    dry_run: bool
    deleted: int
    deleted_bytes: int
    left: int
    left_bytes: int
    keys: list[str]


class FarmReport(msgspec.Struct, kw_only=True):
    """What ``farm compile`` prints.

    Attributes:
        kernels: that the model needs. present: those that the remote had before.
        compiled, found: those that workers compiled for this, and that came to the remote otherwise.
        workers: processes that answered. resent: messages that were sent again, as the broker had lost them.
        canceled: how many were left when the run was canceled from elsewhere.
    """

    url: str
    kernels: int
    present: int
    compiled: int
    found: int
    failed: list[Refused]
    workers: list[str]
    resent: int
    seconds: float
    canceled: int = 0


class SignatureRow(msgspec.Struct, kw_only=True):
    """The kernels that one signer signed, or no one did.

    Attributes:
        standing: ``good``, ``unknown signer``, ``bad signature`` or ``not signed``.
        signer: the name in the file of trusted signers, else the fingerprint of the key, else empty.
        why: why it is not good, of one of the kernels; empty when it is.
        keys: of those with a bad signature; else empty.
    """

    standing: str
    signer: str
    kernels: int
    why: str
    keys: list[str]

    @property
    def is_bad(self) -> bool:
        """Whether the signatures do not fit the kernels that carry them."""
        return self.standing == Standing.BAD.value


def signature_rows(checked: Iterable[tuple[CacheKey, Signed]]) -> list[SignatureRow]:
    """The document of checked signatures: a row for each standing and signer, good ones first."""
    groups: defaultdict[tuple[Standing, str], list[tuple[CacheKey, str]]] = defaultdict(list)
    for key, signed in checked:
        groups[signed.standing, signed.signer].append((key, signed.why))
    order = list(Standing)

    def place(group: tuple[tuple[Standing, str], object]) -> tuple[int, str]:
        (standing, signer), _ = group
        return order.index(standing), signer

    return [
        SignatureRow(
            standing=standing.value,
            signer=signer,
            kernels=len(found),
            why=found[0][1],
            keys=[key for key, _ in found] if standing is Standing.BAD else [],
        )
        for (standing, signer), found in sorted(groups.items(), key=place)
    ]


def exported(file: Path, found: Exported, missing: list[CacheKey]) -> ExportReport:
    """The document of an export to a file, or to a directory of files."""
    files = [file] if file.is_file() else [path for path in file.rglob("*") if path.is_file()]
    return ExportReport(
        file=str(file.absolute()),
        bytes=sum(path.stat().st_size for path in files),
        entries=found.entries,
        refused=list(found.refused),
        missing=missing,
    )


def preflight(pack: Pack, found: Preflight, targets: list[str], keys: list[CacheKey] | None) -> PreflightReport:
    """The document of a pack compared with this machine; ``keys`` are those that a model needs."""
    reasons = list(found.reasons)
    has = None if keys is None else sum(map(pack.has, keys))
    if keys is not None and has != len(keys):
        reasons.append(
            f"it lacks {len(keys) - (has or 0):,} of the {counted(len(keys), 'kernel')} that the model needs"
        )
    return PreflightReport(
        file=str(pack.path.absolute()),
        kernels=len(pack),
        used=not reasons,
        reasons=reasons,
        targets=targets,
        carried=[
            filled(
                CarriedRow,
                one,
                one.made,
                kernels=one.entries,
                differs=[DifferingFactor(factor=f.name, in_pack=f.in_pack, here=f.here) for f in one.differs],
            )
            for one in found.carried
        ],
        sampled=sum(one.entries for one in found.carried) < len(pack),
        signed=found.signed,
        needed=None if keys is None else len(keys),
        found=has,
    )


def imported(file: Path, found: Imported, dry_run: bool) -> ImportReport:
    """The document of an import from a file, or of its dry run."""
    return filled(ImportReport, found, file=str(file.absolute()), dry_run=dry_run)


def remote_state(
    url: str, found: Compared, mode: str, tally: Tally, used: str | None, held_until: float = 0.0
) -> RemoteReport:
    """The document of a store and a remote side by side, and of what lookups did, by the store's journal.

    Args:
        used: the remote that lookups ask, if they ask one.
        held_until: until when processes that start do not ask it at first.
    """
    is_used = used is not None and without_query(used) == without_query(url)

    def last(kind: str) -> Event | None:
        # Events of older versions do not say which remote.
        its = (without_query(url), "") if is_used else (without_query(url),)
        return next((event for event in tally.recent if event.kind == kind and event.remote in its), None)

    down, up = last(REMOTE_DOWN), last(REMOTE_UP)
    if up is not None and down is not None and up.at < down.at:
        up = None
    totals = tally.totals
    return RemoteReport(
        url=url,
        there=found.both + len(found.there),
        there_bytes=found.there_bytes,
        both=found.both,
        only_here=len(found.here),
        only_there=len(found.there),
        others=found.others,
        mode=mode,
        hits=totals.hits.get(REMOTE, 0),
        failures=totals.failures.get(REMOTE, 0),
        sent=totals.remote_sent,
        dropped=totals.remote_dropped,
        down_at=down.at if down else 0.0,
        down_why=down.detail if down else "",
        up_at=up.at if up else 0.0,
        is_used=is_used,
        held_until=held_until,
    )


def pushed(url: str, found: Pushed, present: int) -> PushReport:
    """The document of a push; ``present`` are those that were not even offered."""
    return filled(PushReport, found, url=url, present=found.present + present)


def farmed(url: str, kernels: int, done: Farmed, seconds: float) -> FarmReport:
    """The document of a table that a farm compiled."""
    return FarmReport(
        url=url,
        kernels=kernels,
        present=done.present,
        compiled=done.compiled,
        found=done.found,
        failed=[Refused(key, why) for key, why in sorted(done.failed.items())],
        workers=sorted(done.workers),
        resent=done.resent,
        seconds=seconds,
        canceled=done.canceled,
    )


def pulled(url: str, found: Imported, present: int, *, dry_run: bool) -> PullReport:
    """The document of a pull; ``present`` are those that were not even asked for."""
    return filled(PullReport, found, url=url, dry_run=dry_run, present=found.present + present)

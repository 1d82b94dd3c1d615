"""Documents of kernels that move between stores, packs and remotes, and of who signed them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cache_engine.model.key import CacheKey
from cache_engine.trust.signers import Signed, Standing
from cache_engine.upkeep.packs import Refused

if TYPE_CHECKING:
    from cache_engine.remote.moving import Compared, Pushed
    from cache_engine.upkeep.packs import Exported, Imported


class ExportReport(msgspec.Struct, kw_only=True):
    """What ``export`` prints; ``signed_by`` is the fingerprint of the key, empty without ``--sign``."""

    file: str
    bytes: int
    entries: int
    refused: list[Refused]
    signed_by: str = ""


class ImportReport(msgspec.Struct, kw_only=True):
    """What ``import`` prints. ``left`` is what is no kernel, in a cache of Triton's own."""

    file: str
    dry_run: bool
    taken: int
    taken_bytes: int
    present: int
    refused: list[Refused]
    left: list[Refused] = []


class RemoteReport(msgspec.Struct, kw_only=True):
    """What ``remote status`` prints.

    Attributes:
        there, there_bytes: entries of the remote. only_here, only_there: entries that the other lacks.
        others: objects in the remote's folder that are no entries.
    """

    url: str
    there: int
    there_bytes: int
    both: int
    only_here: int
    only_there: int
    others: int


class PushReport(msgspec.Struct, kw_only=True):
    """What ``remote push`` prints; ``present`` counts those that the remote had already."""

    url: str
    sent: int
    sent_bytes: int
    present: int
    refused: list[Refused]


class PullReport(msgspec.Struct, kw_only=True):
    """What ``remote pull`` prints; ``present`` counts those that the store had already."""

    url: str
    dry_run: bool
    taken: int
    taken_bytes: int
    present: int
    refused: list[Refused]


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


def exported(file: Path, found: Exported) -> ExportReport:
    """The document of an export to a file."""
    return ExportReport(
        file=str(file.absolute()), bytes=file.stat().st_size, entries=found.entries, refused=list(found.refused)
    )


def imported(file: Path, found: Imported, dry_run: bool) -> ImportReport:
    """The document of an import from a file, or of its dry run."""
    return ImportReport(
        file=str(file.absolute()),
        dry_run=dry_run,
        taken=found.taken,
        taken_bytes=found.taken_bytes,
        present=found.present,
        refused=list(found.refused),
        left=list(found.left),
    )


def remote_state(url: str, found: Compared) -> RemoteReport:
    """The document of a store and a remote side by side."""
    return RemoteReport(
        url=url,
        there=found.both + len(found.there),
        there_bytes=found.there_bytes,
        both=found.both,
        only_here=len(found.here),
        only_there=len(found.there),
        others=found.others,
    )


def pushed(url: str, found: Pushed, present: int) -> PushReport:
    """The document of a push; ``present`` are those that were not even offered."""
    return PushReport(
        url=url,
        sent=found.sent,
        sent_bytes=found.sent_bytes,
        present=found.present + present,
        refused=list(found.refused),
    )


def pulled(url: str, found: Imported, present: int, *, dry_run: bool) -> PullReport:
    """The document of a pull; ``present`` are those that were not even asked for."""
    return PullReport(
        url=url,
        dry_run=dry_run,
        taken=found.taken,
        taken_bytes=found.taken_bytes,
        present=found.present + present,
        refused=list(found.refused),
    )

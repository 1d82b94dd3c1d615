"""Documents of kernels that move between stores, packs and remotes, and of who signed them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents import filled
from cache_engine.model.key import CacheKey
from cache_engine.store.signatures.signers import Signed, Standing
from cache_engine.units import counted
from cache_engine.upkeep.packs import Refused

if TYPE_CHECKING:
    from cache_engine.insight.packs import Preflight
    from cache_engine.store.pack import Pack
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

"""Who signed kernels: a part of ``verify``, and the rows that people read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from cache_engine.model.key import CacheKey
from cache_engine.trust.signers import Signed, Standing


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

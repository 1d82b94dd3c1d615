"""Signatures in the SSH format, which prove who made a kernel, and the keys whose signatures are accepted.

A checksum proves that bytes arrived unchanged. Only a signature proves who made them: anyone who can write a pack, or a
folder that it is copied from, can write checksums that match (CVE-2025-36852). These modules are imported only when a
signature is made or checked.
"""

from __future__ import annotations

from collections.abc import Callable

from cache_engine.settings import Settings


def proof_for(settings: Settings) -> Callable[[bytes], None] | None:
    """A function that checks a record for a trusted signature; ``None`` if ``trusted_signers`` is not set.

    Raises:
        UsageError: when the file that the setting names cannot be used.
        ExtraMissing: when the package ``cryptography`` is not installed.
    """
    if settings.trusted_signers is None:
        return None
    from cache_engine.store.signatures.signers import named_by

    return named_by(settings).require

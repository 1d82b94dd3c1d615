"""Proof of a kernel's maker: signatures in the SSH format, and the keys whose signatures are accepted.

A checksum proves that bytes arrived unchanged. Only a signature proves who made them: whoever can write a pack, or the
place that it is copied from, can make its checksums fit (CVE-2025-36852). The modules here are not imported before a
signature is to be made or checked.
"""

from __future__ import annotations

from collections.abc import Callable

from cache_engine.settings import Settings


def proof_for(settings: Settings) -> Callable[[bytes], None] | None:
    """The check that each record of a pack must pass, if the setting ``trusted_signers`` names a file.

    Raises:
        UsageError: when the file cannot be used.
        ExtraMissing: when the package ``cryptography`` is not installed.
    """
    if settings.trusted_signers is None:
        return None
    from cache_engine.store.signatures.signers import named_by

    return named_by(settings).require

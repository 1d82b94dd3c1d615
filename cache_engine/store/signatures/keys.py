"""Signing with a private key of OpenSSH."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cache_engine.errors import UsageError
from cache_engine.inputs import open_input
from cache_engine.settings.extras import needing
from cache_engine.store.codec import signed_part, with_signature
from cache_engine.store.signatures import sshsig
from cache_engine.store.signatures.signers import NAMESPACE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MOST_BYTES = 64 * 1024


class SigningKey:
    """An Ed25519 key that signs entries."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def read(cls, path: Path, passphrase: Callable[[], str] | None = None) -> SigningKey:
        """The key in a file as ``ssh-keygen -t ed25519`` writes it.

        Args:
            passphrase: asked for the passphrase of an encrypted key.

        Raises:
            UsageError: when it is no such key, others may read it, or the passphrase is missing or wrong.
            OSError: when it cannot be read.
            ExtraMissing: when the package ``cryptography`` is not installed.
        """
        with needing("team", "signing"):
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        with open_input(path) as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise UsageError(f"other users may read the key {path}; run chmod 600 on it")
            data = file.read(_MOST_BYTES)
        private: object
        try:
            try:
                private = load_ssh_private_key(data, None)
            except TypeError:  # it is encrypted
                if passphrase is None:
                    raise UsageError(
                        f"the key {path} has a passphrase, and there is no terminal to ask for it"
                    ) from None
                private = load_ssh_private_key(data, passphrase().encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise UsageError(
                f"{path} is not a private key of OpenSSH, or the passphrase is wrong; ssh-keygen -t ed25519 makes one"
            ) from error
        if not isinstance(private, Ed25519PrivateKey):
            raise UsageError(f"{path} is not an Ed25519 key; ssh-keygen -t ed25519 makes one")
        return cls(private)

    @property
    def fingerprint(self) -> str:
        """The public key's fingerprint, as ``ssh-keygen -l`` prints it."""
        return sshsig.fingerprint(self._private.public_key().public_bytes_raw())

    def sign(self, record_data: bytes) -> bytes:
        """A record file that carries this key's signature, in place of any other; raises ``CorruptEntry``."""
        message, _ = signed_part(record_data)
        return with_signature(record_data, sshsig.sign(self._private, message, NAMESPACE))

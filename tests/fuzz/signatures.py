"""What is fuzzed of signatures: their text, and the file of trusted signers."""

from __future__ import annotations

import base64
import os
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cache_engine.errors import UsageError
from cache_engine.store.signatures import sshsig
from cache_engine.store.signatures.signers import NAMESPACE, TrustedSigners

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_MESSAGE = b"a record"


def seeds(_: Path) -> list[bytes]:
    """The bytes within a signature."""
    return [base64.b64decode("".join(sshsig.sign(_KEY, _MESSAGE, NAMESPACE).splitlines()[1:-1]))]


def read(data: bytes, _: Path) -> None:
    """Reads them, in the armor; a signature by this key that fits another message would be a forgery."""
    text = f"-----BEGIN SSH SIGNATURE-----\n{base64.b64encode(data).decode()}\n-----END SSH SIGNATURE-----\n"
    with suppress(ValueError):
        signature = sshsig.parse(text)
        assert not signature.fits(_MESSAGE + b".")
    with suppress(ValueError):
        sshsig.parse(data.decode("utf-8", "replace"))


def signer_lines(_: Path) -> list[bytes]:
    """A file of signers with each option."""
    key = base64.b64encode(sshsig.key_blob(_KEY.public_key().public_bytes_raw()))
    start = b'a@b,"c d" namespaces="x,!y",valid-after="20260101Z",valid-before="203001011200" ssh-ed25519 '
    return [b"# a comment\n" + start + key + b" me\n", b"a cert-authority ssh-rsa AAAA\n"]


def read_signers(data: bytes, folder: Path) -> None:
    """Reads the file."""
    path = folder / "signers"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    with suppress(UsageError):
        TrustedSigners(path)

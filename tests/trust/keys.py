"""Keys in the files that ``ssh-keygen -t ed25519`` writes."""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cache_engine.store.signatures import sshsig
from cache_engine.store.signatures.signers import SigningKey


class Builder:
    """One who signs: a private key in a file, and its public key as text."""

    def __init__(self, file: Path) -> None:
        private = Ed25519PrivateKey.generate()
        file.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        file.chmod(0o600)
        self.file = file
        self.public = private.public_key().public_bytes_raw()
        self.line = f"{sshsig.KEY_TYPE} {base64.b64encode(sshsig.key_blob(self.public)).decode()}"

    @property
    def key(self) -> SigningKey:
        """Read from the file."""
        return SigningKey.read(self.file)


def signers_file(folder: Path, *lines: str) -> Path:
    """A file of trusted signers with these lines."""
    path = folder / "trusted_signers"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path

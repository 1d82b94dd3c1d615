"""Signatures as ``ssh-keygen -Y sign`` makes them and ``ssh-keygen -Y verify`` checks them, with Ed25519 keys.

Source of the format: PROTOCOL.sshsig of OpenSSH. A signature covers the SHA-512 of the message and a namespace. So a
signature made for another purpose, such as a git commit, is not valid for a kernel.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from cache_engine.settings.extras import needing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_TYPE = "ssh-ed25519"
_PURPOSE = "a signature"
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_MAGIC = b"SSHSIG"
_VERSION = 1
_HASHES = ("sha512", "sha256")
_LINE = 70
_MOST_BYTES = 8192  # characters of a signature's text; one of Ed25519 has about 300
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64


@dataclass(frozen=True, slots=True)
class SshSignature:
    """The parts of a signature, as its text states them; only ``fits`` checks whether they are true.

    Attributes:
        key: the public key of the claimed signer, 32 bytes.
        namespace: the purpose of the signature.
        digest: the name of the hash function that was applied to the message.
        signature: the Ed25519 signature, 64 bytes.
    """

    key: bytes
    namespace: str
    digest: str
    signature: bytes

    def fits(self, message: bytes) -> bool:
        """Whether the owner of ``key`` signed ``message`` for ``namespace``. Takes about 0.2 ms."""
        public_key, invalid = _ed25519()
        try:
            public_key.from_public_bytes(self.key).verify(self.signature, _signed(message, self.namespace, self.digest))
        except (invalid, ValueError):
            return False
        return True


@cache
def _ed25519() -> tuple[type[Ed25519PublicKey], type[Exception]]:
    with needing("team", _PURPOSE):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    return Ed25519PublicKey, InvalidSignature


def sign(private: Ed25519PrivateKey, message: bytes, namespace: str) -> str:
    """The signature of a message, in the text form that ``ssh-keygen -Y sign`` writes to a file."""
    digest = _HASHES[0]
    signature = private.sign(_signed(message, namespace, digest))
    key = private.public_key().public_bytes_raw()
    data = b"".join(
        (
            _MAGIC,
            struct.pack(">I", _VERSION),
            _text(key_blob(key)),
            _text(namespace.encode()),
            _text(b""),
            _text(digest.encode()),
            _text(_text(KEY_TYPE.encode()) + _text(signature)),
        )
    )
    encoded = base64.b64encode(data).decode()
    lines = [encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE)]
    return "\n".join((_BEGIN, *lines, _END, ""))


def parse(text: str) -> SshSignature:
    """The parts of a signature in text form.

    Raises:
        ValueError: when the text is not a signature; says what is wrong.
    """
    if len(text) > _MOST_BYTES:
        raise ValueError("it is too long for a signature")
    lines = text.split()
    body = "".join(text.strip().splitlines()[1:-1])
    if not text.strip().startswith(_BEGIN) or not text.strip().endswith(_END) or len(lines) < len(_BEGIN.split()) + 1:
        raise ValueError("it is not an SSH signature")
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("it is not in base64") from error
    if not data.startswith(_MAGIC):
        raise ValueError("it is not an SSH signature")
    if len(data) < len(_MAGIC) + _SIGNATURE_BYTES:
        raise ValueError("it is cut short")
    return SshSignature(*_head(data[len(_MAGIC) : -_SIGNATURE_BYTES]), data[-_SIGNATURE_BYTES:])


@lru_cache(maxsize=64)
def _head(data: bytes) -> tuple[bytes, str, str]:
    """The public key, the namespace and the hash function, from the part of a signature before its last 64 bytes.

    This part is the same in all signatures of one signer, so the result is cached.
    """
    reader = _Reader(data + bytes(_SIGNATURE_BYTES))
    if reader.number() != _VERSION:
        raise ValueError("its version is not known to this program")
    public, namespace, _, digest, signature = (reader.text() for _ in range(5))
    reader.end()
    if digest.decode("ascii", "replace") not in _HASHES:
        raise ValueError("its hash function is not known to this program")
    try:
        purpose = namespace.decode()
    except UnicodeDecodeError as error:
        raise ValueError("its namespace is not text") from error
    _parts_of(signature, _SIGNATURE_BYTES, "signature")
    return key_of(public), purpose, digest.decode()


def key_blob(key: bytes) -> bytes:
    """The SSH encoding of a 32-byte public key; a ``.pub`` file has it in base64."""
    return _text(KEY_TYPE.encode()) + _text(key)


def key_of(blob: bytes) -> bytes:
    """The 32-byte public key in its SSH encoding.

    Raises:
        ValueError: when it is not an Ed25519 key.
    """
    return _parts_of(blob, _KEY_BYTES, "key")


def fingerprint(key: bytes) -> str:
    """A public key's fingerprint, as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key_blob(key)).digest()).decode().rstrip("=")


def _signed(message: bytes, namespace: str, digest: str) -> bytes:
    """The bytes that the Ed25519 key signs."""
    hashed = (hashlib.sha512 if digest == "sha512" else hashlib.sha256)(message).digest()  # new takes 2 µs
    return _MAGIC + _text(namespace.encode()) + _text(b"") + _text(digest.encode()) + _text(hashed)


def _parts_of(data: bytes, size: int, what: str) -> bytes:
    """The bytes after the algorithm's name; raises ``ValueError`` unless there are ``size`` of them."""
    reader = _Reader(data)
    kind, value = reader.text(), reader.text()
    reader.end()
    if kind != KEY_TYPE.encode():
        raise ValueError(f"its {what} is {kind[:32].decode('ascii', 'replace')}; only {KEY_TYPE} is accepted")
    if len(value) != size:
        raise ValueError(f"its {what} has {len(value)} bytes, not {size}")
    return value


def _text(data: bytes) -> bytes:
    """The SSH encoding of a string: its length and its bytes (RFC 4251, section 5)."""
    return struct.pack(">I", len(data)) + data


class _Reader:
    """Reads SSH numbers and strings from bytes; raises ``ValueError`` where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def number(self) -> int:
        return int(struct.unpack(">I", self._take(4))[0])

    def text(self) -> bytes:
        return self._take(self.number())

    def end(self) -> None:
        if self._data:
            raise ValueError("it has bytes after its end")

    def _take(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        if len(taken) < size:
            raise ValueError("it is cut short")
        return taken

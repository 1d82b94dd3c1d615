"""The file of trusted signers, in the format of OpenSSH's ``allowed_signers``; checking signatures; signing keys.

::

    # who                  what it may sign               key
    builder@example.com    namespaces="kernel@gemm-cache"  ssh-ed25519 AAAAC3…
    old@example.com        valid-before="20270101Z"        ssh-ed25519 AAAAC3…

Source of the format: ``ssh-keygen(1)``, ALLOWED SIGNERS. Removing a line revokes a key; a file that was changed is read
again at the next check. Lines for certificates, and lines with a key that is not Ed25519, are ignored.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from cache_engine.errors import CorruptEntry, Unproved, UsageError
from cache_engine.inputs import open_input
from cache_engine.settings import Settings
from cache_engine.settings.extras import needing, require
from cache_engine.store.codec import signed_part, with_signature
from cache_engine.store.ownership import check_file, open_way
from cache_engine.store.signatures import sshsig
from cache_engine.units import printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


NAMESPACE = "kernel@gemm-cache"
"""The namespace of kernel signatures, for ``ssh-keygen -Y verify -n``."""
_MOST_BYTES = 1024**2  # of a file of signers: more than ten thousand
_WORD = re.compile(r'(?:[^ \t\r"]++|"[^"]*+")++')
_OPTION = re.compile(r'([A-Za-z-]+)(?:="([^"]*)")?(?:,|$)')
_TIMES = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}

_log = logging.getLogger(__name__)


class Standing(StrEnum):
    """The result of checking a signature; the value is the text shown."""

    GOOD = "good"
    UNKNOWN = "unknown signer"
    BAD = "bad signature"
    NONE = "not signed"


@dataclass(frozen=True, slots=True)
class Signed:
    """The signer of an entry, and whether the entry's signature is accepted.

    Attributes:
        standing: the result of the check.
        signer: the name of a trusted signer; the fingerprint of an unknown key; else empty.
        why: the reason why the signature is not good, for people; empty when it is good.
    """

    standing: Standing
    signer: str = ""
    why: str = ""

    def __str__(self) -> str:
        """The result as text, such as ``good, by builder@example.com``."""
        if self.standing is Standing.GOOD:
            return f"good, by {self.signer}"
        return f"{self.standing.value}{f' {self.signer}' if self.signer else ''}: {self.why}"


@dataclass(frozen=True, slots=True)
class _Signer:
    """A line of the file: the signer's names, the key, and the limits of what the key may sign."""

    names: str
    key: bytes
    namespaces: tuple[str, ...]
    after: float
    before: float


def named_by(settings: Settings) -> TrustedSigners:
    """The signers in the file that the setting ``trusted_signers`` names; no signer if it is not set."""
    require("team", "checking signatures", "cryptography")
    return TrustedSigners(settings.trusted_signers, trust=settings.trust_store)


class TrustedSigners:
    """The keys of a file whose signatures are accepted. Safe to use from several threads."""

    def __init__(self, path: Path | None, *, trust: bool = False, clock: Callable[[], float] = time.time) -> None:
        """Reads the file.

        Args:
            path: the file; ``None`` trusts no key.
            trust: accept a file that users other than you and root can change.
            clock: returns the present time, in seconds since 1970.

        Raises:
            UsageError: when the file cannot be read, or others can change it; the text says what to do.
        """
        self.path, self._trust, self._clock = path, trust, clock
        self._lock = threading.Lock()
        self._state: tuple[int, ...] = ()
        self._by_key: dict[bytes, list[_Signer]] = {}
        self._read_if_changed()

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._by_key)

    def check(self, record_data: bytes) -> Signed:
        """Checks the signature of an entry, given the bytes of its record.

        The record has the digest of the blob, so one signature covers both.

        Raises:
            ExtraMissing: when the package ``cryptography`` is not installed.
            UsageError: when the file was changed and cannot be read.
        """
        message, text = signed_part(record_data)
        if not text:
            return Signed(Standing.NONE, why="the kernel has no signature")
        try:
            signature = sshsig.parse(text)
        except ValueError as error:
            return Signed(Standing.BAD, why=f"the signature cannot be read: {error}")
        name = sshsig.fingerprint(signature.key)
        if signature.namespace != NAMESPACE:
            return Signed(Standing.BAD, name, f"the signature is for {printable(signature.namespace[:64])!r}")
        # Before the key is looked up: the claimed signer must really have signed.
        if not signature.fits(message):
            return Signed(Standing.BAD, name, "the record was changed after it was signed, or was never signed by it")
        self._read_if_changed()
        return self._standing(signature.key, name)

    def require(self, record_data: bytes) -> None:
        """Refuses an entry without a good signature by a trusted signer.

        Raises:
            Unproved: when it has none.
            ExtraMissing, UsageError: as ``check``; in this case, too, the entry must not be served.
        """
        try:
            signed = self.check(record_data)
        except CorruptEntry:
            raise
        except Exception as error:
            raise Unproved(f"the signature cannot be checked: {error}") from error
        if signed.standing is not Standing.GOOD:
            raise Unproved(f"{signed}; {self.path} names who is trusted")

    def _standing(self, key: bytes, name: str) -> Signed:
        lines = self._by_key.get(key, ())
        if not lines:
            no_file = "the setting trusted_signers names no file"
            return Signed(Standing.UNKNOWN, name, no_file if self.path is None else f"{self.path} does not have it")
        now, why = self._clock(), ""
        for line in lines:
            if not _fits(NAMESPACE, line.namespaces):
                why = f"the key of {line.names} may not sign {NAMESPACE}"
            elif now < line.after:
                why = f"the key of {line.names} is valid from {_day(line.after)}"
            elif now >= line.before:
                why = f"the key of {line.names} was valid until {_day(line.before)}"
            else:
                return Signed(Standing.GOOD, line.names)
        return Signed(Standing.UNKNOWN, lines[-1].names, why)

    def _read_if_changed(self) -> None:
        if self.path is None:
            return
        with self._lock:
            try:
                status = os.stat(self.path)
                state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if state != self._state:
                    self._by_key = _read(self.path, self._trust)
                    self._state = state
            except OSError as error:
                self._by_key, self._state = {}, ()
                raise UsageError(
                    f"cannot read the trusted signers in {self.path}: {error.strerror or error}; kernels of others are "
                    "not served without them"
                ) from error


def _read(path: Path, trust: bool) -> dict[bytes, list[_Signer]]:
    try:
        if not trust:
            os.close(open_way(path))
        with open_input(path) as file:
            if not trust:
                check_file(path, os.fstat(file.fileno()))
            data = file.read(_MOST_BYTES + 1)
    except CorruptEntry as error:
        raise UsageError(f"{error}; only you and root may be able to change it: run chmod go-w on it") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path} has more than {_MOST_BYTES:,} bytes, too many for a list of signers")
    found: dict[bytes, list[_Signer]] = {}
    # Split at newlines only, as OpenSSH does: ``str.splitlines`` would also split a comment at a form feed.
    for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
        try:
            signer = _signer(line)
        except ValueError as error:
            _log.warning("%s, line %d trusts nothing: %s", path, number, error)
            continue
        if signer is not None:
            found.setdefault(signer.key, []).append(signer)
    return found


def _signer(line: str) -> _Signer | None:
    """The signer in a line of the file; ``None`` for an empty line, a comment, or a kind of line that is ignored here.

    Raises:
        ValueError: when the line cannot be read.
    """
    words: list[str] = [] if line.lstrip(" \t\r").startswith("#") else _WORD.findall(line)
    if not words:
        return None
    names, rest = printable(words[0].strip('"')), words[1:]
    options: dict[str, str] = {}
    if rest and not rest[0].startswith(("ssh-", "ecdsa-", "sk-")):
        options = _options(rest.pop(0))
    if len(rest) < 2:
        raise ValueError("it has no key")
    if rest[0] != sshsig.KEY_TYPE or "cert-authority" in options:
        return None
    key = sshsig.key_of(base64.b64decode(rest[1], validate=True))
    namespaces = tuple(options.get("namespaces", "*").split(","))
    after = _time(options["valid-after"]) if "valid-after" in options else float("-inf")
    before = _time(options["valid-before"]) if "valid-before" in options else float("inf")
    return _Signer(names, key, namespaces, after, before)


def _options(text: str) -> dict[str, str]:
    found, end = {}, 0
    while end < len(text):
        match = _OPTION.match(text, end)
        if match is None or match[1].lower() not in {"cert-authority", "namespaces", "valid-after", "valid-before"}:
            raise ValueError(f"its option {printable(text[end : end + 40])!r} is not known to this program")
        if (match[2] is None) != (match[1].lower() == "cert-authority"):
            raise ValueError(f"its option {match[1]} lacks a value in quotation marks, or has one too many")
        if match[1].lower() in found:
            raise ValueError(f"its option {match[1]} is there twice")
        found[match[1].lower()] = match[2] or ""
        end = match.end()
    return found


def _time(text: str) -> float:
    """The time of ``YYYYMMDD[HHMM[SS]][Z]`` in seconds since 1970; local time, or UTC with ``Z``."""
    digits = text.removesuffix("Z")
    if len(digits) not in _TIMES or not digits.isascii() or not digits.isdigit():
        raise ValueError(f"{printable(text[:40])!r} is not a time such as 20270101Z")
    moment = datetime.strptime(digits, _TIMES[len(digits)])  # noqa: DTZ007 -- without Z it is local time
    if not text.endswith("Z"):
        with suppress(OverflowError, ValueError):  # near the first or last year, take it as UTC
            return moment.astimezone().timestamp()
    return moment.replace(tzinfo=UTC).timestamp()


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name matches a list of OpenSSH patterns: at least one, and none that begins with ``!``."""
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    refused = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return any(_matches(name, one) for one in wanted) and not any(_matches(name, one) for one in refused)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.replace("[", "[[]"))  # OpenSSH has only the wildcards * and ?


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


# ---- Signing with a private key of OpenSSH ----

_MOST_KEY_BYTES = 64 * 1024


class SigningKey:
    """An Ed25519 key that signs entries."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def read(cls, path: Path, passphrase: Callable[[], str] | None = None) -> SigningKey:
        """The key in a file as ``ssh-keygen -t ed25519`` writes it.

        Args:
            passphrase: a function that returns the passphrase; called if the key is encrypted.

        Raises:
            UsageError: when the file is not such a key, others may read it, or the passphrase is missing or wrong.
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
            data = file.read(_MOST_KEY_BYTES)
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
        """The record file with this key's signature in place of any other; raises ``CorruptEntry``."""
        message, _ = signed_part(record_data)
        return with_signature(record_data, sshsig.sign(self._private, message, NAMESPACE))

"""Proofs of kernel families on disk (``model.proof``): a file for each family, device and toolchain.

A file's name is the proof's identity, its content a line with a checksum, as in the log of decisions. A damaged file is
treated as if it did not exist; the next proof replaces it. Another version's file is skipped, and never replaced. Packs
carry proofs of other devices, which are only hints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress

import msgspec

from cache_engine.errors import CorruptEntry, LockTimeout
from cache_engine.logs import Log
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.key import CacheKey, is_key
from cache_engine.model.proof import HINT, PROVED, Proof
from cache_engine.store.files import read_whole
from cache_engine.store.journal.lines import texts, with_checksum
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import file_lock
from cache_engine.store.publish import publish_file

_log = Log(__name__)
_MOST_BYTES = 64 * 1024
_MOST_HINTS, _LONGEST_TEXT = 1000, 200


class UnknownProof(Exception):
    """A proof that another version of this program wrote; its file must stay unchanged."""


def write_proof(layout: StoreLayout, name: CacheKey, proof: Proof, *, durable: bool) -> None:
    """Stores a proof, in place of an older one.

    Raises:
        UnknownProof: when the store has a proof of another version there.
        OSError: when the store cannot be written.
    """
    with suppress(CorruptEntry):
        read_proof(layout, name)
    line = with_checksum(msgspec.json.encode(proof))
    publish_file(layout.temp, layout.proof_path(name), line, durable=durable)


def hints_of(layout: StoreLayout) -> bytes:
    """The proofs of a store as part of a pack: only its own devices' proofs by all canaries. Empty if it has none."""
    every = [(name, one) for name, one in proofs(layout) if one.state == PROVED and one.kernels and not one.confirms]
    newest = sorted(every, key=lambda named: (-named[1].at, named[0]))[:_MOST_HINTS]
    return msgspec.json.encode(newest) if newest else b""


def read_hints(data: bytes) -> list[tuple[CacheKey, Proof]]:
    """The proofs in an untrusted part of a pack, as hints.

    Raises:
        CorruptEntry: when it is no such part, or a hint is impossible; then no hint of the pack is used.
    """
    try:
        found = msgspec.json.decode(data, type=list[tuple[str, Proof]])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"the proofs of the pack cannot be read: {error}") from error
    for name, one in found:
        texts = (one.family, one.toolchain, one.kernels, one.device.name, one.device.arch, one.device.driver)
        evidence = (one.case, one.reason, one.command, one.seed, one.confirms)
        is_short = max(map(len, texts)) <= _LONGEST_TEXT and all(map(str.isprintable, texts))
        if not is_key(name) or one.state != PROVED or any(evidence) or not is_short:
            raise CorruptEntry(f"the proof {name[:12]!r} of the pack is impossible")
    if len(found) > _MOST_HINTS:
        raise CorruptEntry(f"the pack has {len(found):,} proofs; {_MOST_HINTS:,} are possible")
    return [(CacheKey(name), msgspec.structs.replace(one, state=HINT)) for name, one in found]


def keep_hints(layout: StoreLayout, hints: Iterable[tuple[CacheKey, Proof]], *, durable: bool) -> None:
    """Stores hints, but never replaces a proof by this store's own devices. Raises as ``write_proof``.

    While a process makes the same proof, leaves out the hint, because it could replace a refusal written just then.
    """
    for name, hint in hints:
        with suppress(CorruptEntry, UnknownProof, LockTimeout), ExitStack() as held:
            with suppress(OSError):  # a file system may have no locks
                held.enter_context(file_lock(layout.key_lock(name), 0.0))
            own = read_proof(layout, name)
            if own is None or own.state == HINT:
                write_proof(layout, name, hint, durable=durable)


def read_proof(layout: StoreLayout, name: CacheKey) -> Proof | None:
    """The proof with this identity; ``None`` if the store has none.

    Raises:
        CorruptEntry: when the file is damaged, or another user's.
        UnknownProof: when another version of this program wrote it.
        OSError: when it cannot be read.
    """
    data = read_whole(layout.proof_path(name), _MOST_BYTES, trust=layout.trust)
    if data is None:
        return None
    found = list(texts(data))
    if len(found) != 1 or found[0] is None:
        raise CorruptEntry(f"the proof {name[:12]} does not match its checksum")
    try:
        return msgspec.json.decode(found[0], type=Proof)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownProof(f"the proof {name[:12]} is of another version: {error}") from error


def proofs(layout: StoreLayout) -> Iterator[tuple[CacheKey, Proof]]:
    """All proofs of a store with their identities. Skips damaged ones, with a warning."""
    names: list[str] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(os.listdir(layout.proofs))
    for name in filter(is_key, names):
        try:
            proof = read_proof(layout, CacheKey(name))
        except (CorruptEntry, UnknownProof, OSError) as error:
            _log.warning("%s; it counts as no proof", error)
        else:
            if proof is not None:
                yield CacheKey(name), proof


def states(
    layout: StoreLayout, family: str, toolchain: str | None = None, device: DeviceFingerprint | None = None
) -> list[Proof]:
    """The proofs of a family, newest first, then hints; only those with ``toolchain`` and on ``device``, if given."""
    found = [proof for _, proof in proofs(layout) if proof.family == family]
    found = [proof for proof in found if toolchain in (None, proof.toolchain) and device in (None, proof.device)]
    return sorted(found, key=lambda proof: (proof.state == HINT, -proof.at))

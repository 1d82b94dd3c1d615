"""Entries to look up and publish: real compiled code, whole or put together to a size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from cache_engine.cache.cache import Cache
from cache_engine.model.artifact import SECTIONS, Artifact, Blob, Record
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore, open_store

PROBLEM = GemmProblem(4096, 7168, 2048, arch="sm_90")
"""A prefill product of a public model; its kernel is the typical one."""

LARGE_CUBIN_BYTES = 64 * 1024


def large_cubin(cache: Cache) -> bytes:
    """64 KiB of real compiled code: several kernels, one after the other, cut to size."""
    others = [replace(PROBLEM, dtype=dtype, out_dtype=None, n=7166) for dtype in (DType.FP64, DType.FP16, DType.FP32)]
    return b"".join(cache.get_or_compile(problem).cubin for problem in (PROBLEM, *others))[:LARGE_CUBIN_BYTES]


def artifact_of(cache: Cache, record: Record) -> Artifact:
    """An entry's artifact, read back from the store."""
    parts = {name: cache.store.section(record, name) for name in SECTIONS}
    return Artifact(**parts, resources=record.resources)


def describer(record: Record, key: CacheKey) -> Callable[[Blob], Record]:
    """A function that describes a blob as ``record`` does its own, under another key."""

    def describe(blob: Blob) -> Record:
        return msgspec.structs.replace(record, key=key, blob=blob)

    return describe


def store_of(folder: Path, record: Record, cubin: bytes) -> DiskStore:
    """A store of one entry: the record's, with this compiled code and no more."""
    store = DiskStore(open_store(folder), durable=False)
    key = CacheKey(record.key)
    store.publish(key, Artifact(cubin, b"", b"", b"", record.resources), describer(record, key))
    return store


def new_signer(place: Path) -> Path:
    """A new signing key, the file ``key`` in a folder; returns the file that trusts it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private, key, signers = Ed25519PrivateKey.generate(), place / "key", place / "trusted_signers"
    key.touch(0o600)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    signers.touch(0o600)
    signers.write_bytes(b"bench@example.com " + public + b"\n")
    return signers

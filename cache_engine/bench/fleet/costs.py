"""What one machine pays for a kernel of a model: compiling it, its bytes in a remote, and taking it from there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from cache_engine.catalogue import model_shapes
from cache_engine.compilers import COMPILERS
from cache_engine.engine.cache import open_cache
from cache_engine.extras import needing, require
from cache_engine.insight.coverage import coverage, distinct, wanted
from cache_engine.model.gemm import DType

MODEL, TARGET = "Llama-3.1-8B", "sm_90a"
_COMPILED = 8
_PURPOSE = "bench fleet"


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured on one machine.

    Attributes:
        kernels: how many the model needs for every m.
        compile_s: wall seconds of compiling each of some of them, one at a time.
        object_bytes: of each of these in a remote, signed.
        take_s: wall seconds of taking one from a remote that is a directory: reading, checking the signature and every
            byte, storing it durably. The median.
    """

    kernels: int
    compile_s: tuple[float, ...]
    object_bytes: tuple[int, ...]
    take_s: float

    @property
    def pack_bytes(self) -> int:
        """Of a file with all kernels, by the mean of those measured."""
        return round(self.kernels * sum(self.object_bytes) / len(self.object_bytes))


def measure(place: Path) -> Costs:
    """Compiles kernels of a model in a store under ``place``, and moves them through a remote to another.

    Raises:
        ExtraMissing: when the extra remote or trust is not installed.
    """
    require("remote", _PURPOSE)
    with needing("trust", _PURPOSE):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cache_engine.remote.moving import pull, push
    from cache_engine.remote.objects import Objects
    from cache_engine.trust.keys import SigningKey

    key = SigningKey(Ed25519PrivateKey.generate())
    remote = Objects(f"file://{place / 'remote'}")
    COMPILERS["nvrtc"].load()  # once in a process, and so no part of compiling a kernel
    with open_cache(place / "builder") as cache:
        needed = distinct(coverage(cache, wanted(model_shapes(MODEL), DType.BF16, (TARGET,))))
        some = needed[:: max(1, len(needed) // _COMPILED)][:_COMPILED]
        compiled = []
        for kernel in some:
            started = time.perf_counter()
            cache.get_or_compile(kernel.selection.problem)
            compiled.append(time.perf_counter() - started)
        keys = [kernel.key for kernel in some]
        sizes = [push(cache.store, remote, [each], sign=key.sign).sent_bytes for each in keys]
    taken = []
    with open_cache(place / "reader") as cache:
        for each in keys:
            started = time.perf_counter()
            pull(cache.store, cache.journal, remote, [each], prove=_checked)
            taken.append(time.perf_counter() - started)
    return Costs(len(needed), tuple(compiled), tuple(sizes), sorted(taken)[len(taken) // 2])


def _checked(record_data: bytes) -> None:
    """Checks a signature as a store does that trusts every key: that costs the same."""
    from cache_engine.store.codec import signed_part
    from cache_engine.trust import sshsig

    message, signature = signed_part(record_data)
    if not sshsig.parse(signature).fits(message):
        raise AssertionError("the signature that was just made does not fit")

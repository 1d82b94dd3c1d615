"""Whatever is wrong with an entry or a store, no adapter raises to its framework, or gives it another's bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard

from cache_engine.adapters.cupy import _Backend
from cache_engine.adapters.shelf import Programs, shelf
from cache_engine.frameworks.bundles import group_key
from cache_engine.store.layout import StoreLayout
from tests.remote.waiting import until

_CODE, _OTHERS = b"code of this kernel" * 9, b"code of the other" * 9
_INDEX = {"triton": "kernel.json"}
_HEADER = struct.Struct("<8sH32s32s")


class _CudaCore:
    framework = "cuda_core"

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("cuda.core.utils", exc_type=ImportError)
        from cache_engine.adapters.cuda_core import ProgramCache

        self._cache = ProgramCache(folder)

    def get(self, name: str) -> bytes | None:
        found: bytes | None = self._cache.get(bytes.fromhex(name))
        return found

    def put(self, name: str, code: bytes) -> None:
        self._cache[bytes.fromhex(name)] = code

    def more(self, name: str) -> None:
        len(self._cache)
        with suppress(KeyError):
            del self._cache[bytes.fromhex(name)]
        self._cache.clear()


class _CuPy:
    framework = "cupy"

    def __init__(self, folder: Path) -> None:
        stored = shelf(folder)
        assert stored is not None
        self._backend = _Backend(Programs(stored, "cupy", "CuPy", "14.0"))

    def get(self, name: str) -> bytes | None:
        return self._backend.load(name)

    def put(self, name: str, code: bytes) -> None:
        self._backend.save(name, code, "source")

    def more(self, name: str) -> None:
        """CuPy asks for nothing else."""


class _Triton:
    framework = "triton"

    def __init__(self, _: Path) -> None:
        pytest.importorskip("triton")
        from cache_engine.adapters.triton import CacheManager

        self._manager = CacheManager  # which finds the store by the environment

    def get(self, name: str) -> bytes | None:
        found = self._manager(name).get_group("kernel.json")
        return None if found is None else Path(found["kernel.cubin"]).read_bytes()

    def put(self, name: str, code: bytes) -> None:
        manager = self._manager(name)
        manager.get_group("kernel.json")
        parts = {"kernel.cubin": code, "kernel.json": b'{"target": 1}'}
        manager.put_group("kernel.json", {part: manager.put(data, part) for part, data in parts.items()})

    def more(self, name: str) -> None:
        """Triton asks for nothing else."""


_ADAPTERS: tuple[Callable[[Path], _CudaCore | _CuPy | _Triton], ...] = (_CudaCore, _CuPy, _Triton)


def _forged(path: Path, packed: bytes, version: int = 1) -> None:
    """A file whose header is right: it names the key of its path, and the digest of what follows."""
    path.write_bytes(
        _HEADER.pack(b"GEMMGRUP", version, bytes.fromhex(path.name), hashlib.sha256(packed).digest()) + packed
    )


def _replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink() if path.is_file() else _delete(path)
    make(path)


def _delete(folder: Path) -> None:
    """Again and again: a thread of the cache may write there meanwhile."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    until(is_gone)


_Damage = Callable[[StoreLayout, Path, Path], object]
_ELSEWHERE = ("none", "no temporaries", "no locks", "no pins", "no journal")
"""Leaves the kernel as it is."""
_DAMAGE: dict[str, _Damage] = {
    "none": lambda layout, path, other: None,
    "empty": lambda layout, path, other: path.write_bytes(b""),
    "cut": lambda layout, path, other: path.write_bytes(path.read_bytes()[:-1]),
    "no header": lambda layout, path, other: path.write_bytes(bytes(200)),
    "of another kernel": lambda layout, path, other: path.write_bytes(other.read_bytes()),
    "of another kernel, forged": lambda layout, path, other: _forged(path, other.read_bytes()[_HEADER.size :]),
    "from the future": lambda layout, path, other: _forged(path, path.read_bytes()[_HEADER.size :], version=9),
    "no frame": lambda layout, path, other: _forged(path, b"no frame"),
    "no group": lambda layout, path, other: _forged(path, zstandard.compress(b"\x93no group")),
    "too large": lambda layout, path, other: _forged(path, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\0" * 20),
    "a folder": lambda layout, path, other: _replaced(path, Path.mkdir),
    "a pipe": lambda layout, path, other: _replaced(path, os.mkfifo),
    "a link": lambda layout, path, other: _replaced(path, lambda it: it.symlink_to(other)),
    "a link to itself": lambda layout, path, other: _replaced(path, lambda it: it.symlink_to(it)),
    "of everyone": lambda layout, path, other: path.chmod(0o666),
    "no groups": lambda layout, path, other: _replaced(layout.groups, Path.touch),
    "groups are a link": lambda layout, path, other: _replaced(layout.groups, lambda it: it.symlink_to(it)),
    "no temporaries": lambda layout, path, other: _replaced(layout.temp, Path.touch),
    "no locks": lambda layout, path, other: _replaced(layout.locks, Path.touch),
    "no pins": lambda layout, path, other: layout.pins.touch(),
    "no journal": lambda layout, path, other: _replaced(layout.journal, Path.touch),
    "no store": lambda layout, path, other: _delete(layout.root),
}


@pytest.mark.parametrize("adapter", _ADAPTERS, ids=lambda it: it.framework)
@pytest.mark.parametrize("damage", _DAMAGE)
def test_nothing_in_a_store_is_an_error_of_a_framework(
    adapter: Callable[[Path], _CudaCore | _CuPy | _Triton],
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "store"))
    shelf.cache_clear()
    layout, names = StoreLayout(tmp_path / "store"), ("aa", "bb")
    cache = adapter(layout.root)
    for name, code in zip(names, (_CODE, _OTHERS), strict=True):
        cache.put(name, code)
        assert cache.get(name) == code
    index = _INDEX.get(cache.framework, "program")
    path, other = (Path(layout.group_path(group_key(cache.framework, name, index))) for name in names)
    _DAMAGE[damage](layout, path, other)
    assert cache.get("aa") == (_CODE if damage in _ELSEWHERE else None)
    cache.put("aa", _CODE)
    assert cache.get("aa") in (_CODE, None)
    cache.more("aa")
    assert cache.get("bb") in (_OTHERS, None)

"""The real cuda.core keeps its programs in our store. The extra bench has it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.index.queries import KernelFilter, kernels
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.upkeep.integrity import check

pytest.importorskip("cuda.core.utils", exc_type=ImportError)
from cuda.core import ObjectCode, Program, ProgramOptions
from cuda.core.utils import make_program_cache_key

from cache_engine.adapters.cuda_core import ProgramCache

_SOURCE = """
extern "C" __global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 2 * x[i];
}
"""
_OPTIONS = ProgramOptions(arch="sm_90")
_AGAIN = """
import sys
from cuda.core import Program, ProgramOptions
from cache_engine.adapters.cuda_core import ProgramCache

def refuse(*_, **__):
    raise AssertionError("compiled again")

ProgramCache.__setitem__ = refuse
made = Program(sys.argv[2], "c++", ProgramOptions(arch="sm_90")).compile("cubin", cache=ProgramCache(sys.argv[1]))
print(bytes(made.code).hex())
"""


def _compile(cache: ProgramCache) -> bytes:
    return bytes(Program(_SOURCE, "c++", _OPTIONS).compile("cubin", cache=cache).code)


def _key() -> bytes:
    key: bytes = make_program_cache_key(code=_SOURCE, code_type="c++", options=_OPTIONS, target_type="cubin")
    return key


def _groups(folder: Path) -> list[Path]:
    return list((folder / "groups").iterdir())


def test_a_second_process_is_served_without_a_compile(tmp_path: Path) -> None:
    code = _compile(ProgramCache(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", _AGAIN, tmp_path, _SOURCE], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert bytes.fromhex(done.stdout) == code
    assert list(check(DiskStore(open_store(tmp_path)))) == []


def test_a_program_has_a_row_with_facts_hits_and_compile_time(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    code = _compile(cache)
    assert _compile(cache) == _compile(cache) == code
    # Without a driver cuda.core makes no PTX: it asks for the driver's version.
    text = cache["ptx"] = b".version 8.4\n.target sm_90\n.visible .entry scale(\n"
    cache._programs.shelf._journal.flush()  # type: ignore[union-attr]
    with open_cache(tmp_path) as opened:
        rows = {row["code_bytes"] is None: row for row in opened.query(kernels, KernelFilter(frameworks=()))}
    assert {row["framework"] for row in rows.values()} == {"cuda_core"}
    binary, ptx = rows[False], rows[True]
    assert (binary["name"], binary["arch"], binary["hits"], binary["size_bytes"]) == ("scale", "sm_90", 2, len(code))
    assert (ptx["name"], ptx["arch"], ptx["hits"], ptx["size_bytes"]) == ("scale", "sm_90", 0, len(text))
    assert binary["registers"] > 0
    assert 1 < binary["compile_ms"] < 60_000


def test_a_damaged_program_is_compiled_again_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ProgramCache(tmp_path)
    code = _compile(cache)
    (path,) = _groups(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert _compile(cache) == code
    assert "does not match its checksum" in caplog.text
    assert cache.get(_key()) == code


def test_what_fails_in_the_store_fails_no_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    cache = ProgramCache(tmp_path / "store")
    for what in ("put_group", "read_stored"):
        with monkeypatch.context() as patched:
            patched.setattr(f"cache_engine.adapters.shelf.{what}", fail)
            assert _compile(cache).startswith(b"\x7fELF")
        assert "No space left" in caplog.text
        caplog.clear()
    (tmp_path / "file").write_text("no directory")
    with caplog.at_level(logging.WARNING):
        without = ProgramCache(tmp_path / "file")
    assert "the store cannot be used" in caplog.text
    assert _compile(without) == _compile(without)
    assert len(without) == 0
    without.clear()


def test_it_is_a_mapping_as_cuda_core_s_own_are(tmp_path: Path) -> None:
    with ProgramCache(tmp_path / "store") as cache:
        cache["a"] = b"one"
        assert cache[b"a"] == b"one"
        cache.update({b"b": bytearray(b"two"), "c": memoryview(b"three")})
        (tmp_path / "code").write_bytes(b"four")
        cache["d"] = ObjectCode.from_cubin(str(tmp_path / "code"))
        assert [cache[name] for name in "abcd"] == [b"one", b"two", b"three", b"four"]
        assert len(cache) == 4
        del cache["a"]
        assert cache.get("a") is None
        with pytest.raises(KeyError):
            del cache["a"]
        with pytest.raises(TypeError):
            cache[1] = b"x"
        with pytest.raises(TypeError):
            cache["x"] = 1
        with open_cache(tmp_path / "store") as opened:
            opened.admin.pin(opened.query(kernels, KernelFilter(frameworks=()), limit=1)[0]["key"])
        cache.clear()
        assert len(cache) == 1

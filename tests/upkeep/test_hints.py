"""Packs carry proofs of kernel families as hints; what is damaged or impossible among them is refused."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.errors import CorruptEntry, LockTimeout, PackUnusable
from cache_engine.model.key import CacheKey
from cache_engine.model.proof import HINT, PROVED, REFUSED, Proof
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal
from cache_engine.store.lock import file_lock
from cache_engine.store.pack import Pack
from cache_engine.store.proofs import keep_hints, proofs, read_hints, states, write_proof
from cache_engine.upkeep.packs import Imported, export_pack, import_pack
from tests.helpers import INVENTED_GPU, fill

NAME = CacheKey("ab" * 32)
PROOF = Proof(
    family="hopper", state=PROVED, device=INVENTED_GPU, toolchain="nvrtc 13.0", at=1.0, cases=22, kernels="cd" * 32
)


@pytest.fixture
def pack(store: DiskStore, tmp_path: Path) -> Path:
    """Of a store with two kernels, a proof, and two that say nothing about another device."""
    fill(store, 2)
    write_proof(store.layout, NAME, PROOF, durable=False)
    write_proof(store.layout, CacheKey("01" * 32), msgspec.structs.replace(PROOF, state=REFUSED), durable=False)
    write_proof(store.layout, CacheKey("02" * 32), msgspec.structs.replace(PROOF, state=HINT), durable=False)
    export_pack(store, tmp_path / "a.gemmpack")
    return tmp_path / "a.gemmpack"


def _imported(pack: Path, folder: Path, **options: Any) -> tuple[Imported, dict[CacheKey, Proof]]:
    prove = options.pop("prove", None)
    other = DiskStore(open_store(folder), durable=False)
    found = import_pack(other, Journal(other.layout.journal, 3600.0), Pack(pack, prove=prove), **options)
    return found, dict(proofs(other.layout))


def test_a_pack_brings_its_own_proofs_as_hints(pack: Path, tmp_path: Path) -> None:
    found, hints = _imported(pack, tmp_path / "other")
    assert (found.taken, found.refused) == (2, ())
    assert hints == {NAME: msgspec.structs.replace(PROOF, state=HINT)}
    assert _imported(pack, tmp_path / "dry", dry_run=True)[1] == {}
    assert _imported(pack, tmp_path / "signed", prove=lambda _: None)[1] == {}, "nobody signs hints"


def test_a_damaged_byte_of_the_hints_is_seen(pack: Path, tmp_path: Path) -> None:
    data = pack.read_bytes()
    start = data.index(b"GEMMHINT")
    for at in (start, start + 8, start + 20, start + 60):
        pack.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(PackUnusable, match="copy"):
            _imported(pack, tmp_path / str(at))


def _forged(pack: Path, hints: bytes) -> None:
    """Replaces the hints by others of the same length, with their digest."""
    data = pack.read_bytes()
    start = data.index(b"GEMMHINT")
    size = int.from_bytes(data[start + 8 : start + 16], "little")
    hints = hints.ljust(size)
    assert len(hints) == size
    head = data[: start + 16] + hashlib.sha256(hints).digest()
    pack.write_bytes(head + hints + data[len(head) + size :])


def _with(**changes: Any) -> bytes:
    """A hint with changes; texts that are left out make room for them."""
    fields = msgspec.to_builtins(msgspec.structs.replace(PROOF, kernels="c", toolchain="t"))
    return msgspec.json.encode([(changes.pop("name", NAME), {**fields, **changes})])


@pytest.mark.parametrize(
    "hints",
    [
        b"[" * 300, b"{}", b"\xff", b"[[1, 2]]", _with(name="../x"), _with(state=REFUSED), _with(state=HINT),
        _with(state="trusted"), _with(cases=-1), _with(at=1e300), _with(confirms=True), _with(reason="x"),
        _with(device={}), _with(family="\x1b[31m"),
    ],
)  # fmt: skip
def test_an_impossible_hint_is_refused_and_the_kernels_are_taken(hints: bytes, pack: Path, tmp_path: Path) -> None:
    _forged(pack, hints)
    found, stored = _imported(pack, tmp_path / "other")
    assert (found.taken, stored) == (2, {})
    assert [one.key for one in found.refused] == ["proofs"]
    assert "proof" in found.refused[0].cause


def test_a_hint_waits_for_no_proof_and_replaces_no_refusal(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if another process refuses the family between the reading of its proof and the writing of the hint."""
    layout = open_store(tmp_path / "other")
    with file_lock(layout.key_lock(NAME), 0.0):  # as the process has that proves
        assert _imported(pack, tmp_path / "other")[1] == {}
    written = []

    def refused_now(*_: object, **__: object) -> None:
        with suppress(LockTimeout), file_lock(layout.key_lock(NAME), 0.0):
            written.append(NAME)

    monkeypatch.setattr("cache_engine.store.proofs.read_proof", refused_now)
    keep_hints(layout, [(NAME, PROOF)], durable=False)
    assert not written, "the lock is held from reading to writing"


def test_own_proofs_come_before_a_hint_from_the_future(store: DiskStore) -> None:
    hint = msgspec.structs.replace(PROOF, state=HINT, at=1e12)
    write_proof(store.layout, NAME, hint, durable=False)
    write_proof(store.layout, CacheKey("01" * 32), msgspec.structs.replace(PROOF, state=REFUSED), durable=False)
    assert [one.state for one in states(store.layout, "hopper", device=INVENTED_GPU)] == [REFUSED, HINT]


def test_hints_are_short_and_few() -> None:
    one = (NAME, PROOF)
    assert len(read_hints(msgspec.json.encode([one] * 1000))) == 1000
    long = (NAME, msgspec.structs.replace(PROOF, toolchain="x" * 201))
    for many in ([one] * 1001, [one, long]):
        with pytest.raises(CorruptEntry):
            read_hints(msgspec.json.encode(many))


def test_bytes_between_the_header_and_the_first_entry_are_damage(store: DiskStore, tmp_path: Path) -> None:
    fill(store, 1)
    export_pack(store, tmp_path / "a.gemmpack")
    assert not Pack(tmp_path / "a.gemmpack").hints()
    write_proof(store.layout, NAME, PROOF, durable=False)
    export_pack(store, tmp_path / "b.gemmpack")
    data = (tmp_path / "b.gemmpack").read_bytes()
    (tmp_path / "b.gemmpack").write_bytes(data.replace(b"GEMMHINT", b"GEMMHUNT"))
    with pytest.raises(PackUnusable, match="damaged"):
        list(Pack(tmp_path / "b.gemmpack").rows())

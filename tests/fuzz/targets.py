"""What is fuzzed: every parser of bytes that others may have written.

A target is called with bytes. It repairs checksums, digests and counts first, so that a mutation reaches what lies
behind them, then reads. It returns when the bytes were read or refused with an error that is documented, and raises
anything else. What was decoded must come out the same when it is written and read again.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec
import xxhash

from benchmarks.replay.traces import read_trace
from cache_engine.batch import jobs
from cache_engine.cache.remote.tier import outage
from cache_engine.compilers.elf import cubin_fault, read_cubin
from cache_engine.errors import CorruptEntry, GemmCacheError, InvalidHardware, PackUnusable, StoreUnusable, UsageError
from cache_engine.evaluator.catalogue import table_shapes
from cache_engine.evaluator.chips import load_chip
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import entry as results
from cache_engine.evaluator.search import evaluate
from cache_engine.model.artifact import CUBIN, Blob, Record, Section
from cache_engine.model.decision import Causes, Decision
from cache_engine.model.events import REMOTE_DOWN
from cache_engine.model.gemm import Epilogue, GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey, check_prefix
from cache_engine.model.proof import HINT, PROVED, Proof
from cache_engine.store import timings
from cache_engine.store.codec import (
    MAX_RAW_BYTES,
    UnknownFormat,
    decode_record,
    decode_section,
    encode_blob,
    encode_record,
)
from cache_engine.store.disk import open_store
from cache_engine.store.journal import SNAPSHOT, DecisionReader, Journal, fold, load_snapshot, read_journal
from cache_engine.store.journal.demand import load_demand, read_timeline
from cache_engine.store.journal.lines import with_checksum
from cache_engine.store.layout import StoreLayout
from cache_engine.store.pack import Pack, write_pack
from cache_engine.store.proofs import UnknownProof, hints_of, read_hints, read_proof, write_proof
from cache_engine.store.results import (
    NewResult,
    UnknownResults,
    Usage,
    compress,
    decode_snapshot,
    decompress,
    read_lines,
)
from cache_engine.upkeep.packs import look_into
from cache_engine.upkeep.survey import check_code, check_record
from cache_engine.usage.demand import by_bytes, by_flops
from cache_engine.usage.timeline import Stored, Timeline
from tests.fuzz import caches, code, evaluated, groups, remotes, reports, signatures
from tests.helpers import INVENTED_GPU, invented_timing, make_cubin, make_entry, make_store

PROBLEM = GemmProblem(128, 256, 192, arch="sm_90")
CONFIG = KernelConfig(64, 64, 32, 2, 2, 3)
_PACK_HEADER, _PACK_ROW = struct.Struct("<8sHHIQQ32s"), 48


@dataclass(frozen=True)
class Target:
    """A parser: inputs to start from, and what reads one, given a folder of its own."""

    seeds: Callable[[Path], list[bytes]]
    read: Callable[[bytes, Path], None]


def _record(_: Path) -> list[bytes]:
    key, artifact, describe = make_entry(1)
    return [msgspec.json.encode(describe(encode_blob(key, artifact, compress=True)[1]))]


def _read_record(data: bytes, _: Path) -> None:
    """The inner object; the envelope and its checksum are made to fit."""
    try:
        key = CacheKey(msgspec.json.decode(data, type=_Keyed).key)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        key = CacheKey("0" * 64)
    checksum = f"xxh3:{xxhash.xxh3_128_hexdigest(data.strip())}"
    envelope = b'{"format":1,"checksum":"%b","record":%b}\n' % (checksum.encode(), data.strip())
    for whole in (envelope, data):
        with suppress(CorruptEntry, UnknownFormat):
            record = decode_record(key, whole)
            assert decode_record(key, encode_record(record)) == record
            check_record(record)


class _Keyed(msgspec.Struct):
    key: str


def _blob(_: Path) -> list[bytes]:
    key, artifact, _describe = make_entry(1, cubin_bytes=200)
    return [bytes([compress]) + encode_blob(key, artifact, compress=bool(compress))[0][44:] for compress in (0, 1)]


def _read_blob(data: bytes, _: Path) -> None:
    """One section; header and checksum are made to fit. The first byte says whether it is compressed."""
    key, compressed, stored = CacheKey("ab" * 32), bool(data[:1].strip(b"\0")), data[1:]
    declared = int.from_bytes(stored[5:7], "little") + 256 if len(stored) > 7 else 0  # of a small zstd frame
    for raw in {len(stored), declared, 0}:
        section = Section(44, len(stored), raw, f"xxh3:{xxhash.xxh3_128_hexdigest(stored)}")
        blob = Blob("", 44 + len(stored), compressed, {CUBIN: section})
        header = struct.pack("<8sHH32s", b"GEMMBLOB", 1, int(compressed), bytes.fromhex(key))
        with suppress(CorruptEntry):
            assert len(decode_section(key, blob, CUBIN, header + stored)) <= MAX_RAW_BYTES


def _pack(folder: Path) -> list[bytes]:
    entries = []
    for seed in range(3):
        key, artifact, describe = make_entry(seed, cubin_bytes=100)
        data, blob = encode_blob(key, artifact, compress=True)
        entries.append((key, encode_record(describe(blob)), data))
    write_pack(folder / "seed.gemmpack", sorted(entries), hints=b"[]")
    return [(folder / "seed.gemmpack").read_bytes()]


def _read_pack(data: bytes, folder: Path) -> None:
    """The header's magic, format, count and digest are made to fit the index that it points at."""
    if len(data) >= _PACK_HEADER.size:
        index = max(_PACK_HEADER.size, min(int.from_bytes(data[24:32], "little"), len(data)))
        count = (len(data) - index) // _PACK_ROW
        data = data[: index + count * _PACK_ROW]
        digest = hashlib.sha256(data[index:]).digest()
        header = _PACK_HEADER.pack(b"GEMMPACK", 1, 0, 0, count, index, digest)
        data = header + data[_PACK_HEADER.size :]
    path = folder / "fuzzed.gemmpack"
    path.write_bytes(data)
    path.chmod(0o600)
    store = make_store(folder / "store")
    with suppress(PackUnusable, CorruptEntry):
        pack = Pack(path, check=_check_entry)
        assert sum(pack.made_with.values()) >= 0
        pack.hints()
        assert all(len(record.key) == 64 for record in pack.records())
        for number in range(min(len(pack), 10)):
            with suppress(CorruptEntry):
                pack.get(pack.key_at(number))
        for incoming in look_into(store, pack):
            assert incoming.refused or incoming.record is not None


def _check_entry(record: Record, cubin: bytes) -> None:
    check_record(record)
    check_code(record, cubin)


def _hints(folder: Path) -> list[bytes]:
    store = make_store(folder / "store")
    proof = Proof(family="hopper", state=PROVED, device=INVENTED_GPU, toolchain="nvrtc", at=1.0, cases=2, kernels="ab")
    write_proof(store.layout, CacheKey("ab" * 32), proof, durable=False)
    return [hints_of(store.layout), msgspec.json.encode(proof)]


def _read_hints(data: bytes, folder: Path) -> None:
    """Also as a proof in the store; its checksum is made to fit."""
    with suppress(CorruptEntry):
        assert all(hint.state == HINT for _, hint in read_hints(data))
    store = make_store(folder / "store")
    path = Path(store.layout.proof_path(CacheKey("cd" * 32)))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(with_checksum(data))
    path.chmod(0o600)
    with suppress(CorruptEntry, UnknownProof):
        read_proof(store.layout, CacheKey("cd" * 32))


def _journal(folder: Path) -> list[bytes]:
    journal = Journal(folder / "seed", 3600.0)
    (folder / "seed").mkdir(exist_ok=True)
    journal.hit(make_entry(1)[0], "disk", made_at=1_700_000_000.0, saved_us=1000)
    journal.event("publish", key=make_entry(1)[0], compile_us=1000, stored_bytes=10, detail="new")
    journal.event(REMOTE_DOWN, detail="it is down", remote="s3://bucket/x", waited_us=10**6)
    journal.asked(PROBLEM)
    journal.close()
    return [path.read_bytes() for path in (folder / "seed").iterdir()]


def _read_journal(data: bytes, folder: Path) -> None:
    (folder / "journal").mkdir(exist_ok=True)
    (folder / "journal" / "0001.jsonl").write_bytes(data)
    totals = read_journal(folder / "journal").totals
    assert min(totals.misses, totals.compiles, totals.saved_us, *totals.hits.values(), 0) == 0
    assert read_timeline(StoreLayout(folder)).ledger(3600.0, 1.8e9).total >= 0
    failed = outage(folder / "journal", "s3://bucket/x", time.time())
    assert failed is None or (failed.at <= time.time() and failed.waited_us > 0)


def _read_journal_snapshot(data: bytes, folder: Path) -> None:
    (folder / "sums").mkdir(exist_ok=True)
    (folder / "sums" / SNAPSHOT).write_bytes(data)
    with suppress(ValueError, RecursionError):  # UnknownSnapshot is a ValueError
        load_snapshot(folder / "sums")
    read_journal(folder / "sums")


def _results(_: Path) -> list[bytes]:
    """A result without a checksum, as other tools write it, so that mutations reach what is behind that."""
    chip, problem = PRESETS["SG2262"], EvaluationProblem(64, 128, 64)
    stored = results.make_entry(problem, SearchMode(), evaluate(problem, chip), 1.0, 1_700_000_000.0)
    unsigned = msgspec.structs.replace(stored, metadata=msgspec.structs.replace(stored.metadata, checksum=""))
    snapshot = {
        "version": "1.0.0", "cache_format_version": "1.0", "arch_fingerprint": "ab" * 16, "architecture": {},
        "cache_entries": {stored.key(): unsigned}, "statistics": {"total_entries": 1},
    }  # fmt: skip
    plain = msgspec.json.encode(snapshot)
    return [plain, compress(plain)]


def _read_results(data: bytes, _: Path) -> None:
    with suppress(CorruptEntry, UnknownResults):
        snapshot = decode_snapshot(decompress(data))
        for key, raw in snapshot.cache_entries.items():
            with suppress(CorruptEntry):
                entry = results.decode_entry(raw, key)
                assert results.decode_entry(results.encode_entry(entry), key).result == entry.result


def _result_log(_: Path) -> list[bytes]:
    return [b'key 1700000000.0 2.5 {"a": 1}\n~ {"at": 1.0, "hits": {"key": 1}, "misses": 2}\n']


def _read_result_log(data: bytes, _: Path) -> None:
    """Each line gets the checksum that it needs."""
    whole = b"".join(
        b"\n" + xxhash.xxh3_64_hexdigest(line).encode() + b" " + line + b"\n" for line in data.split(b"\n") if line
    )
    for line in (*read_lines(whole), *read_lines(data)):
        assert line is None or isinstance(line, NewResult | Usage)


def _decisions(_: Path) -> list[bytes]:
    return [
        b'{"kind":"miss","at":1.0,"key":"ab","request":"r","toolchain":"t"}\n{"kind":"choice","at":2.0,"margin":0.5}\n'
    ]


def _read_decisions(data: bytes, folder: Path) -> None:
    """Each line gets the checksum that it needs."""
    layout = StoreLayout(folder)
    layout.decisions.mkdir(exist_ok=True)
    causes = Causes()
    for text in (*data.split(b"\n"), data):
        line = b"\n" + xxhash.xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"
        layout.decisions_log.write_bytes(line)
        for one in map(causes.explained, DecisionReader(layout).new()):
            assert msgspec.json.decode(msgspec.json.encode(one), type=Decision) == one


def _timing(_: Path) -> list[bytes]:
    return [timings.encode(invented_timing(PROBLEM, CONFIG, 10.0))]


def _read_timing(data: bytes, _: Path) -> None:
    """The checksum is made to fit the measurement in it."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        inner = bytes(msgspec.json.decode(data, type=_Timed).measurement)
        checksum = f"xxh3:{xxhash.xxh3_128_hexdigest(inner)}"
        fitted = b'{"checksum":"%b","measurement":%b}' % (checksum.encode(), inner)
        with suppress(CorruptEntry):
            measurement = timings.decode(fitted)
            assert timings.decode(timings.encode(measurement)) == measurement
    with suppress(CorruptEntry):
        timings.decode(data)


class _Timed(msgspec.Struct):
    measurement: msgspec.Raw


def _job(_: Path) -> list[bytes]:
    return [b'{"id": "1", "command": ["compile"], "started_at": 1.0, "state": "running", "pid": 1}']


def _read_job(data: bytes, folder: Path) -> None:
    path = folder / "1700000000000000000.json"
    path.write_bytes(data)
    with suppress(GemmCacheError):
        jobs._read(path)


def _chip(_: Path) -> list[bytes]:
    return [msgspec.json.encode({field.name: getattr(chip, field.name) for field in fields(chip)})
            for chip in (PRESETS["SG2262"],)]  # fmt: skip


def _read_chip(data: bytes, folder: Path) -> None:
    path = folder / "chip.json"
    path.write_bytes(data)
    with suppress(InvalidHardware):
        load_chip(path)


def _read_config(data: bytes, _: Path) -> None:
    text = data.decode("utf-8", "surrogateescape")
    with suppress(UsageError):
        config = KernelConfig.parse(text)
        again = ",".join(f"{field.name}={getattr(config, field.name)}" for field in fields(config))
        assert KernelConfig.parse(again) == config
    with suppress(UsageError):
        epilogue = Epilogue.parse(text)
        assert Epilogue.parse(str(epilogue)) == epilogue
    with suppress(UsageError):
        assert text.strip().lower().startswith(check_prefix(text))


def _read_elf(data: bytes, _: Path) -> None:
    for header in (b"", make_cubin("sm_90", b"")[:52]):
        assert isinstance(cubin_fault(header + data[len(header) :], "sm_90"), str | None)
        with suppress(ValueError):
            read_cubin(header + data[len(header) :])


def _read_table(data: bytes, folder: Path) -> None:
    path = folder / "shapes.csv"
    path.write_bytes(data)
    with suppress(UsageError):
        for shape in table_shapes(path):
            assert shape.n >= 1
            assert shape.k >= 1


def _read_trace(data: bytes, folder: Path) -> None:
    path = folder / "trace.csv"
    for whole in (data, gzip.compress(data), gzip.compress(data)[:-9] + data[-9:]):
        path.write_bytes(whole)
        with suppress(UsageError):
            trace = read_trace(path)
            assert len(trace) == len(trace.prompts) == len(trace.outputs) > 0
            assert list(trace.arrivals_s) == sorted(trace.arrivals_s)


def _demand(folder: Path) -> list[bytes]:
    layout = StoreLayout(folder)
    for path in (layout.journal, layout.temp):
        path.mkdir(exist_ok=True)
    journal = Journal(layout.journal, 3600.0)
    for m in range(1, 80):
        journal.asked(replace(PROBLEM, m=m))
    journal.close()
    fold(layout.journal, layout.temp, keep=lambda _: True)
    return [layout.demand.read_bytes()]


def _read_demand(data: bytes, folder: Path) -> None:
    layout = StoreLayout(folder)
    layout.demand.write_bytes(data)
    with suppress(ValueError, RecursionError):  # UnknownSnapshot is a ValueError
        load_demand(layout)
    timeline = read_timeline(layout)
    timeline.coarsen(1.8e9)
    ledger = timeline.ledger(3600.0, 1.8e9)
    for shape, sketch in ledger.sketches.items():
        for m, _ in sketch.spread():
            assert min(by_flops(shape, m), by_bytes(shape, m)) >= 0
    again = msgspec.json.encode(timeline.stored())
    assert msgspec.json.encode(Timeline(msgspec.json.decode(again, type=Stored)).stored()) == again


def _read_marker(data: bytes, folder: Path) -> None:
    root = folder / "marked"
    if not root.exists():
        open_store(root)
    (root / "store.json").write_bytes(data)
    with suppress(StoreUnusable):
        open_store(root)


TARGETS = {
    "record": Target(_record, _read_record),
    "blob": Target(_blob, _read_blob),
    "pack": Target(_pack, _read_pack),
    "hints": Target(_hints, _read_hints),
    "journal": Target(_journal, _read_journal),
    "journal snapshot": Target(
        lambda _: [b'{"format":1,"generation":1,"folded":["0001"],"totals":{},"usage":[],"recent":[],"periods":[]}'],
        _read_journal_snapshot,
    ),
    "results": Target(_results, _read_results),
    "results log": Target(_result_log, _read_result_log),
    "decisions": Target(_decisions, _read_decisions),
    "timing": Target(_timing, _read_timing),
    "job": Target(_job, _read_job),
    "chip": Target(_chip, _read_chip),
    "config": Target(
        lambda _: [b"block_m=64,block_n=64,block_k=32,warps_m=2,warps_n=2,stages=3", b"alpha+beta+bias+gelu"],
        _read_config,
    ),
    "elf": Target(lambda _: [make_cubin("sm_90", bytes(200))], _read_elf),
    "sass": Target(code.sass_seeds, code.read_sass_alone),
    "table": Target(lambda _: [b"n,k,batch,m\n128,256,1,16\n"], _read_table),
    "demand": Target(_demand, _read_demand),
    "trace": Target(
        lambda _: [
            b"arrival_s,prompt_tokens,output_tokens\n0.5,374,44\n4.3,396,109\n",
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
        ],
        _read_trace,
    ),
    "caches": Target(caches.seeds, caches.read),
    "groups": Target(groups.seeds, groups.read),
    "remote": Target(remotes.seeds, remotes.read),
    "signature": Target(signatures.seeds, signatures.read),
    "signers": Target(signatures.signer_lines, signatures.read_signers),
    "model config": Target(evaluated.config_seeds, evaluated.read_model),
    "measurements": Target(evaluated.table_seeds, evaluated.read_table),
    "reference results": Target(evaluated.reference_seeds, evaluated.read_reference),
    "replay report": Target(reports.seeds, reports.read),
    "linked code": Target(code.seeds, code.read),
    "marker": Target(lambda _: [b'{"kind":"gemm-cache store","format":1}'], _read_marker),
}

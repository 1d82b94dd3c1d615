"""A result in the form that is stored and exchanged: a JSON object, and its key."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.evaluator.cost import EVALUATOR, MODEL_VERSION, ORDERS, Evaluation, Partition, SearchMode, Tile
from cache_engine.evaluator.problem import EvaluationProblem, check_unscaled
from cache_engine.model.artifact import Count, Ms, Seconds
from cache_engine.model.outcome import Failure
from cache_engine.store.results import UNREADABLE, Snapshot

# Bounds on the numbers in a file, far beyond any result, so that every number fits wherever it is used. A product of
# sizes of 10¹² has 10⁴⁸ operations.
_LARGEST = 10**60
_Time = Annotated[float, msgspec.Meta(gt=0, le=float(_LARGEST))]
_Part = Annotated[float, msgspec.Meta(ge=0, le=float(_LARGEST))]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6}){0,2}\Z")]


class Shape(msgspec.Struct, frozen=True):
    """The sizes: G products of M × K by K × N."""

    G: int
    M: int
    K: int
    N: int


class Dtypes(msgspec.Struct, frozen=True):
    """The element type of A and B, and that of C."""

    input: str
    output: str


class Result(msgspec.Struct, frozen=True):
    """The result of the search: the times, the operations and bytes, and the choice, as in ``Evaluation``."""

    latency_us: _Time
    compute_us: _Part
    memory_us: _Part
    flops: int
    traffic_bytes: int
    arch_utilization: _Share
    effective_utilization: _Share
    alignment_efficiency: _Share
    tile: dict[str, Count]
    order: str
    partition: dict[str, Count]


class Metadata(msgspec.Struct, frozen=True):
    """The origin of a result. ``checksum`` is the XXH3 of all other fields; files of other tools may lack it."""

    timestamp: Seconds
    search_time_ms: Ms
    num_searched_partitions: Count = 0
    num_searched_tiles: Count = 0
    model_version: _Version = MODEL_VERSION
    checksum: str = ""


class Entry(msgspec.Struct, frozen=True):
    """A stored result."""

    shape: Shape
    dtypes: Dtypes
    search_mode: SearchMode
    result: Result
    metadata: Metadata

    def key(self) -> str:
        """The result's key in the store."""
        return key_of(self.problem(), self.search_mode, self.metadata.model_version)

    def problem(self) -> EvaluationProblem:
        """The problem of the result; raises ``InvalidProblem`` if it is invalid."""
        s = self.shape
        return EvaluationProblem(s.M, s.N, s.K, s.G, self.dtypes.input, self.dtypes.output)

    def evaluation(self) -> Evaluation:
        """The stored numbers in the form that the search returns."""
        r, m = self.result, self.metadata
        found = msgspec.structs.asdict(r) | {"tile": Tile(**r.tile), "partition": Partition(**r.partition)}
        return Evaluation(**found, searched_partitions=m.num_searched_partitions, searched_tiles=m.num_searched_tiles)


_decode = msgspec.json.Decoder(Entry).decode


def key_of(problem: EvaluationProblem, mode: SearchMode, model_version: str = MODEL_VERSION) -> str:
    """The key of a result on one accelerator: such as ``core-grid-1/1x64x7168x2112/bf16-bf16/tp``.

    The parts are the evaluator with the major version of its model; G, M, K, N; types; then ``t`` when tiles were
    searched, ``p`` when partitions were, ``r`` when the traffic of adding up partial sums is counted, and the compute
    rate when that is not 1.

    Raises:
        InvalidProblem: when operands have scales, which this model does not know.
    """
    p = problem
    check_unscaled(p)
    searched = ("t" if mode.tile_search else "") + ("p" if mode.partition_search else "")
    options = ("r" if mode.reduce_partial_sums else "") + ("" if mode.compute_rate == 1 else f"x{mode.compute_rate!r}")
    major = model_version.partition(".")[0]
    sizes = f"{p.batch}x{p.m}x{p.k}x{p.n}"
    return f"{EVALUATOR}-{major}/{sizes}/{p.dtype}-{p.out_dtype}/{searched or '-'}{options}"


def make_entry(
    problem: EvaluationProblem, mode: SearchMode, evaluation: Evaluation, search_ms: float, timestamp: float
) -> Entry:
    """Makes a result to be stored, with its checksum."""
    e = evaluation
    found: dict[str, Any] = {name: getattr(e, name) for name in Result.__struct_fields__}
    entry = Entry(
        Shape(problem.batch, problem.m, problem.k, problem.n),
        Dtypes(problem.dtype, problem.out_dtype),
        mode,
        Result(**found | {"tile": e.tile._asdict(), "partition": e.partition._asdict()}),
        Metadata(timestamp, search_ms, e.searched_partitions, e.searched_tiles),
    )
    return _with_checksum(entry, _checksum(entry))


def encode_entry(entry: Entry) -> bytes:
    """The entry's JSON text, one line, with its checksum."""
    return msgspec.json.encode(entry if entry.metadata.checksum else _with_checksum(entry, _checksum(entry)))


def judge(_: str, raw: bytes | msgspec.Raw) -> str:
    """The result's key; empty if it cannot be read or its checksum differs."""
    try:
        return decode_entry(raw).key()
    except CorruptEntry:
        return ""


def decode_entry(data: bytes | msgspec.Raw, key: str = "") -> Entry:
    """The entry in a JSON text.

    Args:
        key: the key that the result must have; by default any.

    Raises:
        CorruptEntry: when the text is not a result, or does not match its checksum or the key.
    """
    try:
        entry = _decode(data)
        found = entry.key()
        _check_choice(entry.result)
    except (*UNREADABLE, UsageError) as error:
        raise CorruptEntry(f"it is not a result: {error}") from error
    if entry.metadata.checksum and entry.metadata.checksum != _checksum(entry):
        raise CorruptEntry("it does not match its checksum")
    if key and found != key:
        raise CorruptEntry(f"it is the result of {found}")
    return entry


def _check_choice(result: Result) -> None:
    for name, number in (("flops", result.flops), ("traffic_bytes", result.traffic_bytes)):
        if not 0 < number <= _LARGEST:
            raise UsageError(f"{name} is out of range; it must be a whole number from 1 to 1e60")
    if set(result.tile) != {"m", "n", "k"} or set(result.partition) != {"g", "m", "n", "k"}:
        raise UsageError("tile must have m, n and k, and partition g, m, n and k")
    if not all((*result.tile.values(), *result.partition.values())):
        raise UsageError("tile and partition must have whole numbers above 0")
    if result.order not in ORDERS:
        raise UsageError(f"order is {result.order[:20]!r}; it must be one of: {', '.join(ORDERS)}")


def _checksum(entry: Entry) -> str:
    return xxh3_64_hexdigest(msgspec.json.encode(_with_checksum(entry, "")))


def _with_checksum(entry: Entry, checksum: str) -> Entry:
    metadata: Any = msgspec.structs.replace(entry.metadata, checksum=checksum)
    return msgspec.structs.replace(entry, metadata=metadata)


# ---- Which results are old ----


def is_to_validate(entry: Entry) -> bool:
    """Whether a result is from another minor version of the model, so that it is worth searching again."""
    return _version(entry.metadata.model_version)[:2] != _version(MODEL_VERSION)[:2]


def is_older(raw: msgspec.Raw, entry: Entry) -> bool:
    """Whether the stored result is unreadable, or from an older model than ``entry``, which has the same key."""
    try:
        return _version(decode_entry(raw).metadata.model_version) < _version(entry.metadata.model_version)
    except CorruptEntry:
        return True


def last_used(snapshot: Snapshot, key: str) -> float:
    """The time when a result was last used or, if never, made, in seconds since 1970; 0 if the result is unreadable."""
    used = snapshot.usage.get(key)
    if used is None:
        with suppress(CorruptEntry):
            used = decode_entry(snapshot.cache_entries[key]).metadata.timestamp
    return used or 0.0


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


# ---- Return values of lookups, pruning and imports ----


@dataclass(frozen=True, slots=True)
class Older:
    """A stored result of an older version of the model, which is not used: the version, and its latency in µs."""

    model_version: str
    latency_us: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request for a result: the result, and whether it was stored or searched now.

    Attributes:
        cached: whether the result was already stored; if not, it was searched now.
        search_ms: the time of the search, now or when it was stored.
        unkept: why the result could not be stored; ``None`` if it is or will be stored.
        older: the stored result of another minor version of the model, which this one replaces; ``None`` without one.
    """

    key: str
    evaluation: Evaluation
    cached: bool
    search_ms: float
    unkept: Failure | None = None
    older: Older | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """A result that pruning removes, and why.

    Attributes:
        chip: the name of the accelerator; empty if the file does not have it.
        last_used: when the result was last used, in seconds since 1970.
    """

    fingerprint: str
    key: str
    last_used: float
    reason: str
    chip: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of an import.

    Attributes:
        taken: results that were new.
        present: results that were stored already.
        refused: keys of the invalid ones, with the reason.
    """

    fingerprint: str
    taken: int
    present: int
    refused: tuple[tuple[str, str], ...]

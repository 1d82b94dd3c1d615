"""Bundles: all files of another framework's kernel (an adapted kernel), in one file of the store.

Because it is one file, a reader gets all files of one writer or none, whatever is deleted or replaced meanwhile. The
file is a header (magic, format version, key, SHA-256 of the rest) and a zstd frame with the content of ``Group``. Every
read checks all of it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import zstandard

from cache_engine.errors import CorruptEntry, Misplaced, UsageError
from cache_engine.frameworks.facts import (
    chosen_in,
    digest_of,
    entry_of,
    factors_of,
    image_facts,
    is_ptx,
    json_object,
    kernels_in,
    number_in,
    ptx_facts,
    text_in,
    without_binary,
)
from cache_engine.frameworks.folder import Unread
from cache_engine.frameworks.nvcc.results import FRAMEWORK, document_of
from cache_engine.frameworks.readers.programs import program_in, with_last_byte
from cache_engine.frameworks.readers.triton import CHOSEN, factors_in, kind_of, target_of
from cache_engine.frameworks.values import Entry, Factor, KeyFactors, Part, PartKind, first_of, id_of
from cache_engine.model.artifact import Ms, Seconds
from cache_engine.model.key import CacheKey, is_key
from cache_engine.model.outcome import Failure
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import publish_file
from cache_engine.store.quick import FORMAT, HEADER, MAGIC, MAX_BYTES, UnknownGroup, bundle_key, checked_body

_LEVEL = 3
_LONGEST_NAME = 255
MOST_FILES, _MOST_LETTERS = 1_000, 10_000  # of a group: fifty times the usual; and of what is said of it
_Stages = Annotated[dict[str, Ms], msgspec.Meta(max_length=100)]


class Group(msgspec.Struct, frozen=True):
    """A bundle: the files of one kernel.

    Attributes:
        framework: the framework that made them, such as ``triton``.
        name: the framework's own key of the kernel.
        index: the file that names the others.
        files: the bytes of each file, by name.
        made_at: the time of the compile, in seconds since 1970, UTC; 0 if unknown.
        stages_ms: the milliseconds of each stage of the compile; empty if unknown.
        version: the framework's version, if the files do not state it.
    """

    framework: str
    name: str
    index: str
    files: Annotated[dict[str, bytes], msgspec.Meta(max_length=MOST_FILES)]
    made_at: Seconds = 0.0
    stages_ms: _Stages = msgspec.field(default_factory=dict)
    version: str = ""

    @property
    def key(self) -> CacheKey:
        """The kernel's key in our store."""
        return group_key(self.framework, self.name, self.index)

    @property
    def compile_ms(self) -> float | None:
        """The milliseconds of the kernel's compile; ``None`` if unknown."""
        return sum(self.stages_ms.values()) if self.stages_ms else None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Group).decode


def group_key(framework: str, name: str, index: str) -> CacheKey:
    """The key in our store for another framework's kernel."""
    return CacheKey(bundle_key(framework, name, index))


def is_plain(name: str) -> bool:
    """Whether a name is that of a file in a folder, without a path that leads elsewhere."""
    return 0 < len(os.fsencode(name)) <= _LONGEST_NAME and name not in (".", "..") and not {"/", "\0"} & set(name)


@dataclass(frozen=True)
class StoredGroup:
    """A bundle as it is stored, verified by checksum but not unpacked; ``digest`` is that of its content."""

    key: CacheKey
    digest: bytes
    packed: memoryview

    @property
    def data(self) -> bytes:
        """The bytes of the whole file, which ``stored_in`` reads."""
        whole: bytes = self.packed.obj  # type: ignore[assignment]  # of which it is a part
        return whole

    @cached_property
    def group(self) -> Group:
        """The unpacked bundle; raises ``CorruptEntry`` if the bytes are not a bundle, or that of another key."""
        return _unpacked(self.key, self.packed)


def read_stored(layout: StoreLayout, key: CacheKey, *, trust: bool | None = None) -> StoredGroup | None:
    """Reads a bundle without unpacking it; ``None`` if the store has none with this key. Raises as ``read_group``."""
    data = read_file(layout.group_path(key), MAX_BYTES + 1, trust=trust)
    return None if data is None else stored_in(key, data)


def read_group(layout: StoreLayout, key: CacheKey, *, trust: bool | None = None) -> Group | None:
    """Reads and unpacks a bundle, verified by checksum; ``None`` if the store has none with this key.

    Args:
        trust: as for ``read_file``.

    Raises:
        CorruptEntry: when the bundle is damaged, or ``Untrusted``.
        UnknownGroup: when it has another format version.
        OSError: when it cannot be read.
    """
    stored = read_stored(layout, key, trust=trust)
    return None if stored is None else stored.group


def is_unknown_group(layout: StoreLayout, key: CacheKey) -> bool:
    """Whether the store has a bundle with this key in an unknown format version. Such a bundle is never used."""
    try:
        read_group(layout, key, trust=True)  # which decides only on who may change it
    except UnknownGroup:
        return True
    except (CorruptEntry, OSError):
        return False
    return False


def group_keys(layout: StoreLayout, start: str = "") -> Iterator[CacheKey]:
    """The keys of all bundles that begin with ``start``, sorted. Reads no bundle."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(layout.groups)):
            if name.startswith(start) and is_key(name):
                yield CacheKey(name)


def put_group(layout: StoreLayout, group: Group, *, durable: bool) -> int:
    """Stores a bundle, replacing one with the same key; returns its bytes on disk.

    Raises:
        ValueError: when it is larger than ``MAX_BYTES``, or one of its names cannot be that of a file.
        OSError: when writing fails; an old bundle is then unchanged.
    """
    data = _packed(group)
    publish_file(layout.temp, layout.group_path(group.key), data, durable=durable)
    return len(data)


def _is_sound(group: Group) -> bool:
    """Whether the bundle's file names are valid, and neither too many nor too long."""
    said = len(group.framework) + len(group.name) + len(group.version)
    is_named = group.index in group.files and all(map(is_plain, group.files))
    return is_named and len(group.files) <= MOST_FILES and said <= _MOST_LETTERS


def group_bytes(group: Group) -> int:
    """The bytes that a bundle would take on disk; raises ``ValueError`` as ``put_group``."""
    return len(_packed(group))


def _packed(group: Group) -> bytes:
    raw = _encode(group)
    if len(raw) > MAX_BYTES or not _is_sound(group):
        raise ValueError(f"{group.index} of {group.framework} cannot be stored: {len(raw):,} bytes, {[*group.files]}")
    packed = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(raw)
    return HEADER.pack(MAGIC, FORMAT, bytes.fromhex(group.key), hashlib.sha256(packed).digest()) + packed


_of_thread = threading.local()


def _decompressor() -> zstandard.ZstdDecompressor:
    """The decompressor of this thread. It is kept, because making one takes longer than unpacking a kernel."""
    found: zstandard.ZstdDecompressor | None = getattr(_of_thread, "decompressor", None)
    if found is None:
        found = _of_thread.decompressor = zstandard.ZstdDecompressor()
    return found


def stored_in(key: CacheKey, data: bytes) -> StoredGroup:
    """The bundle in the bytes of a file, not unpacked; raises ``CorruptEntry`` and ``UnknownGroup``."""
    digest, packed = checked_body(key, data)
    return StoredGroup(key, digest, packed)


def _unpacked(key: CacheKey, packed: memoryview) -> Group:
    try:
        # max_output_size is ignored for frames that declare their size, so the declaration is checked first.
        if not 0 <= zstandard.frame_content_size(packed) <= MAX_BYTES:
            raise CorruptEntry(f"group {key[:12]} declares no size, or one of more than {MAX_BYTES:,} bytes")
        group = _decode(_decompressor().decompress(packed))
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"group {key[:12]} cannot be read: {error}") from error
    if key != group.key:
        raise Misplaced(f"the group at the path of {key[:12]} is another one")
    if not _is_sound(group):
        raise CorruptEntry(f"group {key[:12]} has names that are none of its files")
    return group


# ---- The facts of an adapted kernel, from its files. Nothing in them is trusted ----


def describe(group: Group) -> Entry:
    """The facts about a bundle's kernel, as an entry of its framework's own cache; the id is the key in our store."""
    facts, unread = _code_facts(group)
    document: Mapping[str, Any] = {}
    try:
        document = json_object(group.files[group.index])
    except Unread as error:
        unread["config"] = str(error)
    if (shared := number_in(document, "shared")) is not None:
        facts["shared_bytes"] = shared  # of the launch; the CUBIN knows only what is static
    launched = _launched(group, document)
    facts |= {
        "name": text_in(document, "name")
        or facts.get("name")
        or launched.get("source")
        or id_of(group.index.rpartition(".")[0]),
        "version": text_in(document, "triton_version") or text_in({"version": group.version}, "version"),
        "arch": facts.get("arch") or target_of(document),
        "config": chosen_in(document, *CHOSEN) | launched,
        "id": group.key,
        "stamp": "",
        "parts": tuple(Part(id_of(name), _kind(name, data), len(data), name) for name, data in group.files.items()),
        "compile_ms": group.compile_ms,
        "created_at": group.made_at,
    }
    others = {
        "version": "it was not stored",
        "compile_ms": "it was not measured",
        "spill_bytes": "the report of the assembler is not stored",
    }
    return entry_of(facts, {**others, **unread})


def _launched(group: Group, document: Mapping[str, Any]) -> dict[str, Any]:
    """For a result of nvcc's launcher: its command, the number of its includes, and its source.

    Empty for other kernels.
    """
    if group.framework != FRAMEWORK:
        return {}
    includes = document.get("includes")
    found: dict[str, Any] = {"source": text_in(document, "source_name") or "", **chosen_in(document, "command")}
    return found | {"includes": len(includes) if isinstance(includes, list) else 0}


def _kind(name: str, data: bytes) -> PartKind:
    """The purpose of a part: by its name, if Triton's, else by its first bytes."""
    kind = kind_of(name)
    if kind == PartKind.OTHER and name.endswith(".o"):
        return PartKind.HOST
    if kind == PartKind.OTHER and program_in(data)[1].startswith(b"\x7fELF"):
        return PartKind.BINARY
    return PartKind.PTX if kind == PartKind.OTHER and is_ptx(data) else kind


def _code_facts(group: Group) -> tuple[dict[str, Any], dict[str, str]]:
    """The facts in the compiled code; and for facts that are unknown, the reason."""
    for name, data in group.files.items():
        if _kind(name, data) == PartKind.BINARY:
            instances, image = program_in(data)
            facts, unread = image_facts(image, id_of(name))
            return {**facts, "name": first_of(instances or kernels_in(image))}, unread
    for name, data in group.files.items():
        if _kind(name, data) == PartKind.PTX and is_ptx(data):
            return ptx_facts(data)
    return {}, without_binary("it has no CUBIN")


def inputs_of(group: Group) -> KeyFactors | Failure:
    """The inputs of the framework's key, if the bundle's files state them."""
    source = next((data for name, data in group.files.items() if _kind(name, data) == PartKind.SOURCE), None)
    if group.framework == "triton":
        try:
            return factors_in(json_object(group.files[group.index]), source)
        except Unread as error:
            return Failure(f"the metadata of {group.key[:12]} cannot be read: {error}")
    if group.framework == FRAMEWORK:
        return _launched_inputs(group)
    if source is None:
        return Failure(f"{group.framework} keys a kernel by a digest, and stores no input of it")
    factors = [Factor("source", digest_of(source), "kernel")]
    if group.version:
        factors.append(Factor("version", group.version, "version"))
    return KeyFactors(tuple(factors), ("the target, and the options and version of the compiler",))


def _launched_inputs(group: Group) -> KeyFactors | Failure:
    """All inputs that decided a result of nvcc's launcher."""
    try:
        document = document_of({"name": group.name, "files": group.files})
        factors = [Factor(str(name), str(value), "option") for name, value in document["options"]]
        for subject in ("variables", "build"):
            factors += [Factor(str(name), str(value), subject) for name, value in document[subject].items()]
        factors.append(Factor("source", str(document["source"]), "kernel"))
        factors += [Factor(f"{root}/{name}", str(digest), "include") for root, name, digest in document["includes"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Failure(f"the description of {group.key[:12]} cannot be read: {error}")
    return factors_of(factors)


def config_text(known: Entry) -> str:
    """The config of a kernel, as text for people."""
    return ", ".join(f"{name}={value}" for name, value in known.config.items())


def part_of(group: Group, kind: PartKind) -> bytes:
    """The bytes of the kernel's first part of this kind.

    Raises:
        UsageError: when the kernel has no such part.
    """
    for name, data in group.files.items():
        if _kind(name, data) == kind:
            return with_last_byte(program_in(data)[1]) if kind == PartKind.BINARY else data
    names = ", ".join(map(id_of, group.files))
    raise UsageError(f"{group.framework} stored no {kind} of this kernel; its parts are: {names}")


def text_of(group: Group, text: str) -> str:
    """One of the kernel's texts: ``source``, ``ptx`` or ``sass``.

    Raises:
        UsageError: when the kernel has no such text.
        ToolMissing: when no disassembler is installed.
    """
    if text == "sass":
        from cache_engine.compilers.disassembly import sass

        return sass(part_of(group, PartKind.BINARY))
    kinds = {"source": PartKind.SOURCE, "ptx": PartKind.PTX}
    if text not in kinds:
        raise UsageError(f"{group.framework} stores no {text}; source, ptx and sass can be shown")
    return part_of(group, kinds[text]).decode(errors="replace")

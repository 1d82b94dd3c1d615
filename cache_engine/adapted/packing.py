"""Adapted kernels in packs: which of them may be there, and how a row of a pack describes one.

A row has the bytes of the group's file where a kernel of ours has its blob, and where that has its record, a record
file of another format version: programs that know no groups leave such a row alone. It names the digest of the group's
file, so that a signature of it covers both.
"""

from __future__ import annotations

import hashlib

import msgspec

from cache_engine.adapted.groups import Group, StoredGroup, UnknownGroup, stored_in
from cache_engine.adapted.importing import check_triton
from cache_engine.compilers.elf import machine_of, read_cubin
from cache_engine.errors import CorruptEntry
from cache_engine.foreign.facts import is_ptx
from cache_engine.foreign.folder import Unread
from cache_engine.foreign.frameworks.cupy import program_in, with_last_byte
from cache_engine.foreign.values import id_of
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import enveloped, format_of, signed_part

FORMAT = 1000
"""The format version of a record file that describes a group; no record of a kernel of ours has it."""

_OF_GPUS = (190, 224)  # the machines of an ELF image: CUDA, and AMD's GPUs
_OF_HOST = (".so", ".autotune.json")
_PROGRAMS = ("cupy", "cuda_core")


class _Described(msgspec.Struct):
    """What a row says of a group: its key, its framework, and the SHA-256 and the size of its file."""

    group: str
    framework: str
    digest: str
    bytes: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Described).decode


def is_group(record_data: bytes) -> bool:
    """Whether a row of a pack with this record is that of a group."""
    return format_of(record_data) == FORMAT


def packed_row(stored: StoredGroup) -> tuple[bytes, bytes]:
    """A group as a row of a pack: what stands for its record, and its bytes.

    Raises:
        CorruptEntry: when it must not leave this machine, or is not what it claims to be; the text says why.
    """
    check(stored.group)
    digest = hashlib.sha256(stored.data).hexdigest()
    described = _Described(stored.key, stored.group.framework, digest, len(stored.data))
    return enveloped(_encode(described), format=FORMAT), stored.data


def unpacked_row(key: CacheKey, record_data: bytes, data: bytes) -> Group:
    """The group in a row of a pack, every byte checked, and all that can be checked of its content.

    Raises:
        CorruptEntry: when it is refused; the text says why.
    """
    inner, _ = signed_part(record_data)
    try:
        described = _decode(inner)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"the record of {key[:12]} cannot be read: {error}") from error
    if (described.group, described.bytes, described.digest) != (key, len(data), hashlib.sha256(data).hexdigest()):
        raise CorruptEntry(f"the record of {key[:12]} is of another kernel, or of other bytes")
    try:
        group = stored_in(key, data).group
    except UnknownGroup as error:
        raise CorruptEntry(f"{error}; a newer version wrote it") from error
    check(group)
    return group


def check(group: Group) -> None:
    """Refuses what is never in a pack: code for the host, and what is not the kernel that it claims to be.

    Raises:
        CorruptEntry: the text says why.
    """
    for name, data in group.files.items():
        if name.endswith(_OF_HOST) or machine_of(data) not in (None, *_OF_GPUS):
            raise CorruptEntry(f"{id_of(name)} is code or tuning for the host: it is kept local, and never in packs")
    try:
        if group.framework == "triton":
            check_triton(group.name, group.index, group.files)
        elif group.framework in _PROGRAMS:
            _check_program(group.files[group.index])
        else:
            raise CorruptEntry(f"{id_of(group.framework)} is no framework whose kernels are in packs")
    except (Unread, ValueError) as error:
        raise CorruptEntry(f"{id_of(group.index)}: {error}") from error


def _check_program(code: bytes) -> None:
    """Raises ``ValueError`` for what is no program for a GPU."""
    image = program_in(code)[1]
    if not is_ptx(image):
        read_cubin(with_last_byte(image))

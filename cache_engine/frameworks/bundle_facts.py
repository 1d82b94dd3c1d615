"""The facts of an adapted kernel, from its files. Nothing in them is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.frameworks.bundles import Group
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
from cache_engine.model.outcome import Failure


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
    """The command, source and number of includes of a result of nvcc's launcher.

    Empty for other kernels.
    """
    if group.framework != FRAMEWORK:
        return {}
    includes = document.get("includes")
    found: dict[str, Any] = {"source": text_in(document, "source_name") or "", **chosen_in(document, "command")}
    return found | {"includes": len(includes) if isinstance(includes, list) else 0}


def _kind(name: str, data: bytes) -> PartKind:
    """The purpose of a kernel's file: by its name if Triton made it, else by its first bytes."""
    kind = kind_of(name)
    if kind == PartKind.OTHER and name.endswith(".o"):
        return PartKind.HOST
    if kind == PartKind.OTHER and program_in(data)[1].startswith(b"\x7fELF"):
        return PartKind.BINARY
    return PartKind.PTX if kind == PartKind.OTHER and is_ptx(data) else kind


def _code_facts(group: Group) -> tuple[dict[str, Any], dict[str, str]]:
    """The facts in the compiled code, as fields of ``Entry``; and for each unknown fact, the reason in words."""
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
        document = document_of(group)
    except CorruptEntry as error:
        return Failure(str(error))
    factors = [Factor(name, value, "option") for name, value in document.options]
    factors += [Factor(name, value, "variables") for name, value in document.variables.items()]
    factors += [Factor(name, value, "build") for name, value in document.build.items()]
    factors.append(Factor("source", document.source, "kernel"))
    factors += [Factor(f"{root}/{name}", digest, "include") for root, name, digest in document.includes]
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

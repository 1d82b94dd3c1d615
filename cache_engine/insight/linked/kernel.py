"""The linked code of a kernel, ours or another framework's.

A store's CUBINs have no line tables. So to view a kernel's links, the kernel is compiled once more with line tables.
The tables hold for the stored kernel if both have the same machine code, byte by byte:
docs/decisions/0016-lines-on-request.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from cache_engine.compilers.base import Compiled
from cache_engine.compilers.elf import code_of, read_cubin
from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.values import Entry, Part, PartKind
from cache_engine.insight.linked.machine_code import read_sass
from cache_engine.insight.linked.marks import PTX, SOURCE, Chain, Linked, PaneText, lines_of, linked
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.outcome import Failure

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache

# ---- Triton's IRs: MLIR with its ``loc`` attributes, LLVM IR with its ``!dbg`` nodes ----
# Sources: MLIR's "Builtin Dialect", "Location Attributes"; LLVM's "Language Reference", "Metadata".

_ALIAS = re.compile(r"^(?P<name>#loc\d*) = loc\((?P<value>.*)\)\s*$")
# A search in a hostile line must not begin again at each of its spaces or letters.
_AT_END = re.compile(r"(?<!\s)\s++loc\((?P<value>#loc\d*|\"[^()]*\"|unknown)\)(?=\s*+\{?+\s*+$)")
_FILE_LINE = re.compile(r'^"(?P<file>(?:[^"\\]++|\\.)*+)":(?P<line>\d{1,9}):\d+')
_NAMED = re.compile(r'^"(?:[^"\\]++|\\.)*+"\((?P<child>.*)\)$')
_CALL = re.compile(r"^callsite\((?P<inner>#loc\d*) at (?P<outer>#loc\d*)\)$")
_FUSED = re.compile(r"^fused(?:<.*?>)?\[(?P<first>[^,\]]+)")

_NODE = re.compile(r"^(?P<name>!\d+) = (?:distinct )?!(?P<kind>DI\w+)\((?P<fields>.*)\)\s*$")
_FIELD = re.compile(r'(?<!\w)(?P<name>\w++): (?P<value>"(?:[^"\\]++|\\.)*+"|[^,()]+)')
_DEBUG = re.compile(r", !dbg (?P<node>!\d+)\s*$")
_DEEPEST = 16  # a hostile text may refer in a circle

TTIR, TTGIR, LLIR = "TTIR", "TTGIR", "LLIR"


def read_mlir(name: str, text: str) -> PaneText:
    """Reads MLIR text: its lines without the locations at their ends, which link the lines to the source."""
    raw = lines_of(text)
    aliases = {found["name"]: found["value"] for line in raw if (found := _ALIAS.match(line))}
    known: dict[str, Chain] = {"": ()}
    lines, chains = [], []
    for line in raw:
        if _ALIAS.match(line):
            continue
        found = _AT_END.search(line)
        at = found["value"] if found else ""
        if at not in known:
            known[at] = _mlir_chain(at, aliases, _DEEPEST)
        lines.append(_AT_END.sub("", line).rstrip())
        chains.append(known[at])
    return PaneText(name, "mlir", lines, chains)


def _mlir_chain(value: str, aliases: Mapping[str, str], depth: int) -> Chain:
    if not depth:
        return ()
    if value.startswith("#"):
        return _mlir_chain(aliases.get(value, ""), aliases, depth - 1)
    if found := _FILE_LINE.match(value):
        return ((found["file"], int(found["line"])),) if int(found["line"]) else ()
    if found := _NAMED.match(value):
        return _mlir_chain(found["child"], aliases, depth - 1)
    if found := _CALL.match(value):
        inner = _mlir_chain(found["inner"], aliases, depth - 1)
        return (inner + _mlir_chain(found["outer"], aliases, depth - 1))[:_DEEPEST]
    if found := _FUSED.match(value):
        return _mlir_chain(found["first"], aliases, depth - 1)
    return ()


def read_llvm(text: str) -> PaneText:
    """Reads LLVM IR text: its lines without the references to debug nodes, which link the lines to the source."""
    raw = lines_of(text)
    nodes: dict[str, dict[str, str]] = {}
    for line in raw:
        if found := _NODE.match(line):
            fields = {field["name"]: field["value"].strip() for field in _FIELD.finditer(found["fields"])}
            nodes[found["name"]] = {"": found["kind"], **fields}
    known: dict[str, Chain] = {}
    lines, chains = [], []
    for line in raw:
        found = _DEBUG.search(line)
        at = found["node"] if found and not line.startswith("define") else ""
        if at and at not in known:
            known[at] = _llvm_chain(at, nodes)
        lines.append(_DEBUG.sub("", line).rstrip())
        chains.append(known.get(at, ()))
    return PaneText(LLIR, "llvm", lines, chains)


def _llvm_chain(node: str, nodes: Mapping[str, Mapping[str, str]]) -> Chain:
    chain = []
    for _ in range(_DEEPEST):
        fields = nodes.get(node, {})
        if fields.get("") != "DILocation":
            break
        stated = fields.get("line", "")
        if line := int(stated) if stated.isascii() and stated.isdecimal() and len(stated) < 10 else 0:
            chain.append((_llvm_file(fields.get("scope", ""), nodes), line))
        node = fields.get("inlinedAt", "")
    return tuple(chain)


def _llvm_file(scope: str, nodes: Mapping[str, Mapping[str, str]]) -> str:
    for _ in range(_DEEPEST):
        fields = nodes.get(scope, {})
        if "file" in fields:
            file = nodes.get(fields["file"], {})
            name, folder = (file.get(field, '""').strip('"') for field in ("filename", "directory"))
            return f"{folder}/{name}" if folder else name
        scope = fields.get("scope", "")
    return ""


# ---- Reads PTX: its instructions, and the lines that its ``.loc`` directives name ----
#
# Source: NVIDIA's "PTX ISA", "Debugging Directives".

_FILE = re.compile(r'^\s*\.file\s+(?P<number>\d{1,9})\s+"(?P<folder>[^"]*)"(?:\s+"(?P<name>[^"]*)")?')
_LOC = re.compile(
    r"^\s*\.loc\s+(?P<file>\d{1,9})\s+(?P<line>\d{1,9})\s+(?P<column>\d+)"
    r"(?:\s*,\s*function_name\s+[^\s,]+\s*,\s*inlined_at\s+(?P<in>\d{1,9})\s+(?P<at>\d{1,9})\s+(?P<at_column>\d+))?"
)
_DEBUG_SECTION = re.compile(r"^\s*\.section\s+\.debug_")
_DEBUG_LABEL = re.compile(r"^\s*\$L__(?:tmp|func_begin|func_end)\d+:\s*$")


def read_ptx(text: str) -> tuple[PaneText, list[int]]:
    """Reads PTX: its lines without line directives; and for each line of ``text``, its number among those lines.

    Numbers count from 1; 0 stands for a line that was removed.
    """
    raw = lines_of(text)
    files = {found["number"]: _path(found) for line in raw if (found := _FILE.match(line))}
    kept: list[str] = []
    chains: list[Chain] = []
    now_at = [0] * len(raw)
    at: Chain = ()
    seen: dict[tuple[str, ...], Chain] = {}
    is_debug = False
    for number, line in enumerate(raw):
        if _DEBUG_SECTION.match(line):
            is_debug = True
        if is_debug:
            is_debug = not line.rstrip().endswith("}")
            continue
        if found := _LOC.match(line):
            at = _chain(found, files, seen)
        elif not _FILE.match(line) and not _DEBUG_LABEL.match(line):
            if line.startswith("}"):
                at = ()
            kept.append(line.rstrip())
            chains.append(at if _is_instruction(line) else ())
            now_at[number] = len(kept)
    while kept and not kept[-1]:
        kept.pop()
        chains.pop()
    return PaneText(PTX, "ptx", kept, chains), [line if line <= len(kept) else 0 for line in now_at]


def instructions(lines: Sequence[str]) -> list[str]:
    """The lines of PTX that are compiled, without comments and blank lines."""
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("//")]


def _path(found: re.Match[str]) -> str:
    return found["folder"] if found["name"] is None else f"{found['folder']}/{found['name']}".lstrip("/")


def _chain(found: re.Match[str], files: dict[str, str], seen: dict[tuple[str, ...], Chain]) -> Chain:
    """The source places of a line directive: the line that it names and, if the code was inlined, that of the call.

    If the call was itself inlined, an earlier directive names its places.
    """
    chain: Chain = ((files.get(found["file"], ""), int(found["line"])),)
    if found["in"] is not None:
        call = (files.get(found["in"], ""), int(found["at"]))
        chain += seen.get(found.group("in", "at", "at_column"), (call,))
    chain = tuple(place for place in chain if place[1])[:_DEEPEST]
    seen[found.group("file", "line", "column")] = chain
    return chain


def _is_instruction(line: str) -> bool:
    text = line.strip()
    return bool(text) and text[0] not in ".{}$/)" and ";" in text


# ---- Kernels of ours, with line tables ----

_IRS = {"ttir": TTIR, "ttgir": TTGIR, "llir": LLIR}


def linked_code(cache: Cache, record: Record) -> Linked:
    """A kernel's source, IRs, PTX and machine code, linked if its toolchain and template are installed here.

    Takes half a second to a few seconds, to compile and disassemble.

    Raises:
        CorruptEntry, StoreError: when the entry cannot be read.
    """
    source, cubin = cache.text(record, "source"), cache.section(record, CUBIN)
    language = "python" if record.compiler == "triton" else "cuda"
    texts = [PaneText(SOURCE, language, lines_of(source))]
    notes = []
    with ThreadPoolExecutor(1) as other:
        counted = other.submit(registers_of, cubin)
        with_lines = _compiled_again(cache, record, source, cubin)
    if isinstance(with_lines, Failure):
        notes.append(f"Lines are not linked: {with_lines}")
        ptx, lines = read_ptx(cache.text(record, "ptx"))
    else:
        texts += irs_of(with_lines.irs)
        ptx, lines = read_ptx(with_lines.ptx.decode("utf-8", "replace"))
        if instructions(ptx.lines) != instructions(read_ptx(cache.text(record, "ptx"))[0].lines):
            notes.append("The PTX is that of compiling again here; the stored PTX differs, the machine code does not.")
        cubin = with_lines.cubin
    texts.append(ptx)
    code = disassembled(cubin, lines, counted.result())
    if isinstance(code, Failure):
        notes.append(f"Machine code is not shown: {code}")
    else:
        texts.append(code)
        if not code.registers:
            notes.append("This nvdisasm does not say which registers are in use.")
    return linked(texts, notes)


def irs_of(irs: tuple[tuple[str, str], ...]) -> list[PaneText]:
    """Triton's IRs, in the order in which Triton makes them."""
    found = dict(irs)
    return [
        read_llvm(found[kind]) if kind == "llir" else read_mlir(name, found[kind])
        for kind, name in _IRS.items()
        if kind in found
    ]


def disassembled(cubin: bytes, ptx_lines: Sequence[int], registers: str) -> PaneText | Failure:
    """The disassembled machine code of a CUBIN, linked if the CUBIN has line tables.

    Args:
        ptx_lines: the second result of ``read_ptx`` for the PTX of this CUBIN.
        registers: the result of ``registers_of`` for the same machine code.
    """
    from cache_engine.compilers.disassembly import linked_sass

    try:
        return read_sass(linked_sass(cubin), registers, ptx_lines)
    except GemmCacheError as error:
        return Failure(str(error))


def registers_of(cubin: bytes) -> str:
    """The text in which nvdisasm prints what each line does to registers; empty if nvdisasm fails."""
    from cache_engine.compilers.disassembly import register_table

    try:
        return register_table(cubin)
    except GemmCacheError:
        return ""


def _compiled_again(cache: Cache, record: Record, source: str, cubin: bytes) -> Compiled | Failure:
    """The kernel compiled again with line tables; a failure if the result has other machine code."""
    from cache_engine.kernels.source import render

    try:
        found = cache.select(
            record.problem.on(record.arch), family=record.family, compiler=record.compiler, config=record.config
        )
        # Compiled is only what our own template makes: a store, or a pack from elsewhere, could hold any text.
        if render(found.family.template, found.constants) != source:
            return Failure("this version of gemm-cache makes another source of it. Compile it again to see its lines.")
        compiled = found.compiler.with_lines().compile(source, record.arch)
        if code_of(compiled.cubin) == code_of(cubin):
            return compiled
    except (GemmCacheError, ValueError) as error:
        return Failure(f"it cannot be compiled here ({error}).")
    here = found.compiler.fingerprint()
    return Failure(
        f"{here.compiler} {here.version} makes other machine code than {record.compiler_version} did. "
        f"Install that version, or compile the kernel again."
    )


# ---- Kernels of other frameworks, from the texts and the binary that they left ----
#
# Triton keeps line tables and locations unless told not to, so its IRs, PTX and machine code are linked as they are.
# Nothing is compiled, and no file is opened that a location names: it is only text.

Read = Callable[[Part], bytes | Failure]
"""A function that reads the bytes of one part of an entry, or returns why it cannot."""

_MLIR = {"ttir": TTIR, "ttgir": TTGIR}
# In the order in which they are made.
_ORDER = (PartKind.SOURCE, PartKind.IR, PartKind.PTX, PartKind.METADATA, PartKind.INDEX)
_IR_ORDER = ("ttir", "ttgir", "llir")
_MOST_PARTS = 30  # three times as many as any framework has


def linked_parts(entry: Entry, read: Read) -> Linked:
    """An entry's source, IRs, PTX, machine code and other texts, linked. Notes say which could not be read, and why."""
    notes: list[str] = []
    code: list[PaneText] = []
    others: list[PaneText] = []
    ptx_lines: Sequence[int] = ()
    parts = [part for part in entry.parts if part.kind in _ORDER]
    if len(parts) > _MOST_PARTS:
        notes.append(f"It has {len(parts):,} texts; {_MOST_PARTS} are shown.")
    for part in sorted(parts, key=_place_in_order)[:_MOST_PARTS]:
        data = read(part)
        if isinstance(data, Failure):
            notes.append(f"{part.name} cannot be read: {data}")
            continue
        found, lines = _text(part, data.decode("utf-8", "replace"))
        if found.name in {each.name for each in code}:
            found = PaneText(part.name, found.language, found.lines)
        ptx_lines = ptx_lines or lines
        (others if part.kind in (PartKind.METADATA, PartKind.INDEX) else code).append(found)
    binary = entry.part(PartKind.BINARY)
    if binary is not None:
        machine_code = _machine_code(read(binary), ptx_lines)
        if isinstance(machine_code, Failure):
            notes.append(f"Machine code is not shown: {machine_code}")
        else:
            code.append(machine_code)
    return linked((*code, *others), notes)


def _place_in_order(part: Part) -> tuple[int, int]:
    suffix = _suffix(part)
    return _ORDER.index(part.kind), _IR_ORDER.index(suffix) if suffix in _IR_ORDER else len(_IR_ORDER)


def _text(part: Part, text: str) -> tuple[PaneText, Sequence[int]]:
    """Reads one text; the second result has the new line numbers of PTX, as ``read_ptx`` returns them, else nothing."""
    suffix = _suffix(part)
    if suffix in _MLIR:
        return read_mlir(_MLIR[suffix], text), ()
    if suffix == "llir":
        return read_llvm(text), ()
    if part.kind == PartKind.PTX and suffix != "amdgcn":
        return read_ptx(text)
    if part.kind == PartKind.SOURCE:
        # What Triton calls source is the MLIR that it made of Python.
        return read_mlir("MLIR", text) if "tt.func" in text else PaneText(SOURCE, "cuda", lines_of(text)), ()
    return PaneText(PTX if part.kind == PartKind.PTX else part.name, "text", lines_of(text)), ()


def _machine_code(data: bytes | Failure, ptx_lines: Sequence[int]) -> PaneText | Failure:
    if isinstance(data, Failure):
        return data
    try:
        read_cubin(data)
    except ValueError as error:
        return Failure(f"the binary is no CUBIN: {error}.")
    return disassembled(data, ptx_lines, registers_of(data))


def _suffix(part: Part) -> str:
    """The ending of a part's name after the last dot, or the whole name if it has no dot."""
    return part.name.rpartition(".")[2]

"""Reads PTX and Triton's IRs: MLIR with its ``loc`` attributes, LLVM IR with its ``!dbg`` nodes.

Sources: MLIR's "Builtin Dialect", "Location Attributes"; LLVM's "Language Reference", "Metadata".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cache_engine.insight.linked.marks import PTX, Chain, PaneText, lines_of

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

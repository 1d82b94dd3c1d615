"""Reads PTX: its instructions, and the lines that its ``.loc`` directives name.

Source: NVIDIA's "PTX ISA", "Debugging Directives".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cache_engine.insight.linked.panes import PTX, Chain, Text, lines_of

_FILE = re.compile(r'^\s*\.file\s+(?P<number>\d{1,9})\s+"(?P<folder>[^"]*)"(?:\s+"(?P<name>[^"]*)")?')
_LOC = re.compile(
    r"^\s*\.loc\s+(?P<file>\d{1,9})\s+(?P<line>\d{1,9})\s+(?P<column>\d+)"
    r"(?:\s*,\s*function_name\s+[^\s,]+\s*,\s*inlined_at\s+(?P<in>\d{1,9})\s+(?P<at>\d{1,9})\s+(?P<at_column>\d+))?"
)
_DEBUG_SECTION = re.compile(r"^\s*\.section\s+\.debug_")
_DEBUG_LABEL = re.compile(r"^\s*\$L__(?:tmp|func_begin|func_end)\d+:\s*$")
_DEEPEST = 16


def read_ptx(text: str) -> tuple[Text, list[int]]:
    """PTX without what it says of lines, and for each line of ``text`` the line that is left of it, from 1; else 0."""
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
    return Text(PTX, "ptx", kept, chains), [line if line <= len(kept) else 0 for line in now_at]


def instructions(lines: Sequence[str]) -> list[str]:
    """The lines of PTX that are compiled: no comments, no blank lines."""
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("//")]


def _path(found: re.Match[str]) -> str:
    return found["folder"] if found["name"] is None else f"{found['folder']}/{found['name']}".lstrip("/")


def _chain(found: re.Match[str], files: dict[str, str], seen: dict[tuple[str, ...], Chain]) -> Chain:
    """Where a directive says that code is from; a call that was itself put elsewhere has its own directive before."""
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

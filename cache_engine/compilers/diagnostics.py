"""Parses a compiler's log: warnings, errors and their lines; and makes a readable report of a failed compile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from cache_engine.errors import CompileError, Level
from cache_engine.model.artifact import MAX_WARNING_LENGTH, MAX_WARNINGS, Resources

_LEVELS = {
    "warning": Level.WARNING,
    "error": Level.ERROR,
    "fatal": Level.FATAL,
    "fatal error": Level.FATAL,
    "catastrophic error": Level.FATAL,
}
_LEVEL = rf"(?P<level>{'|'.join(sorted(_LEVELS, key=len, reverse=True))})"
# kernel.cu(3): error: … (NVIDIA's front end) · kernel.cu:3:10: fatal error: … (the host's preprocessor)
_AT_LINE = re.compile(rf"[^\s():]+(?:\((?P<a>\d+)\)|:(?P<b>\d+)(?::\d+)?): {_LEVEL}(?: #[\w-]+)?\s*: (?P<message>.+)")
# ptxas warning : … · ptxas kernel.ptx, line 20; error   : … · nvcc fatal   : … · nvrtc: error: …
_BY_TOOL = re.compile(rf"(?P<tool>\w+):? (?:[^;]+; )?{_LEVEL}\s*: (?P<message>.+)")

_LINES_AROUND = 2
_MOST_ERRORS = 10


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message of a compiler. ``line`` is the line of the source, from 1; ``None`` if the message names none."""

    level: Level
    message: str
    line: int | None = None

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"


def diagnostics(log: str) -> list[Diagnostic]:
    """The warnings and errors of a log, in the same order."""
    found = []
    for text in log.splitlines():
        if match := _AT_LINE.match(text):
            found.append(Diagnostic(_LEVELS[match["level"]], match["message"], int(match["a"] or match["b"])))
        elif match := _BY_TOOL.match(text):
            found.append(Diagnostic(_LEVELS[match["level"]], f"{match['tool']}: {match['message']}"))
    return found


def first_error(log: str) -> str | None:
    """The first line of a log that reports an error, unchanged; ``None`` if there is none."""
    for text in log.splitlines():
        if any(found.level is not Level.WARNING for found in diagnostics(text)):
            return text.strip()
    return None


def warnings(log: str, resources: Resources) -> tuple[str, ...]:
    """The warnings of a finished compile, register spills first; at most ``MAX_WARNINGS``, without duplicates."""
    found = []
    if resources.spill_bytes:
        found.append(
            f"{resources.spill_bytes} bytes of registers are spilled to local memory, with {resources.registers} "
            "registers per thread; a config with smaller tiles or more warps needs fewer"
        )
    found += [str(each) for each in diagnostics(log) if each.level is Level.WARNING]
    return tuple(dict.fromkeys(text[:MAX_WARNING_LENGTH] for text in found))[:MAX_WARNINGS]


def excerpt(source: str, lines: Iterable[int]) -> str:
    """The lines of the source around each of ``lines``, with numbers; ``lines`` themselves are marked ``>``."""
    text = source.splitlines()
    marked = [line for line in dict.fromkeys(lines) if 1 <= line <= len(text)][:_MOST_ERRORS]
    shown = {
        number
        for line in marked
        for number in range(max(1, line - _LINES_AROUND), min(len(text), line + _LINES_AROUND) + 1)
    }
    width = len(str(max(shown, default=0)))
    written: list[str] = []
    before = 0
    for number in sorted(shown):
        if before and number > before + 1:
            written.append(f"  {'…':>{width}}")
        written.append(f"{'>' if number in marked else ' '} {number:>{width}} | {text[number - 1]}".rstrip())
        before = number
    return "\n".join(written)


def error_excerpt(error: CompileError) -> str:
    """The source around each error of a failed compile; empty if the log names no line."""
    found = diagnostics(error.log)
    return excerpt(error.source, (d.line for d in found if d.level is not Level.WARNING and d.line is not None))


def report(error: CompileError) -> str:
    """All information about a failed compile: log, source lines, flags, and the command that compiles again."""
    lines = error_excerpt(error)
    parts = [
        error.log,
        f"source:\n{lines}" if lines else "",
        f"flags: {shlex.join(error.flags)}",
        f"again: {error.command}" if error.command else "",
    ]
    return "\n\n".join(part for part in parts if part)

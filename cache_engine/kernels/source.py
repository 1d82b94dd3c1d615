"""Source text from templates.

A kernel's source is its template with every include put in place, headed by its constants: one ``#define`` each in CUDA
C++, one dictionary in Python. So it is a pure function of two things the key hashes: the template's text and the
constants. Nothing else can reach it.

A template is read once in a process, and both its digest and every source are made of that text: one that is edited or
upgraded under a running process is that of the next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cache_engine.model.key import sha256

_TEMPLATES = Path(__file__).with_name("templates")
_INCLUDE = re.compile(r'^#include\s+(["<])([^">]+)[">]\s*$', re.MULTILINE)

# Enters every key. To be raised when render() changes what it makes of the same template and constants.
RENDER_VERSION = "1"

# Kernels whose C is of fp8 have the second file in place of the first, and a constant with its digest. So the text of
# templates, which enters the keys of all kernels, has nothing of it.
_EPILOGUES = ("epilogue.cuh", "fp8_epilogue.cuh")
_FP8_EPILOGUE = "FP8_EPILOGUE"


def render(template: str, constants: Mapping[str, str | int], replacements: Mapping[str, str] | None = None) -> str:
    """The complete source of a kernel; it includes nothing.

    Args:
        template: file name in ``templates/``.
        constants: names and values, written in the order given.
        replacements: texts to use, as they are, in place of the named files (the tests swap the hardware out).
    """
    text = _with_includes(template, replacements) if replacements else _text(template)
    if _FP8_EPILOGUE in constants:
        usual, of_fp8 = map(_text, _EPILOGUES)
        text = text.replace(usual, of_fp8)
    if template.endswith(".py"):
        entries = "".join(f"    {name!r}: {value!r},\n" for name, value in constants.items())
        return f"CONSTANTS = {{\n{entries}}}\n\n{text}"
    defines = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return f"{defines}\n{text}"


def template_digest(template: str) -> str:
    """SHA-256 (hex) of a template's text with all it includes, and of the way it is rendered."""
    return sha256(f"{RENDER_VERSION}\n{_text(template)}".encode()).hexdigest()


@cache
def fp8_constants() -> dict[str, str | int]:
    """The constants of kernels whose C is of fp8 alone, by which ``render`` gives them their epilogue."""
    return {_FP8_EPILOGUE: template_digest(_EPILOGUES[1])}


@cache
def _text(template: str) -> str:
    """A template with all it includes, as it was when this process first asked."""
    return _with_includes(template, {})


def _with_includes(name: str, replacements: Mapping[str, str]) -> str:
    def include(match: re.Match[str]) -> str:
        if match[1] == "<":
            # A system header's content would be compiled but not hashed.
            raise ValueError(f"{name} includes <{match[2]}>; templates may include only each other")
        return _with_includes(match[2], replacements) if replacements else _text(match[2])

    if name in replacements:
        return replacements[name]
    return _INCLUDE.sub(include, (_TEMPLATES / name).read_text(encoding="utf-8"))

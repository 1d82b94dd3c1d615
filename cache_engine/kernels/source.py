"""Makes the source text of a kernel from a template.

The source is the constants, then the template with every include replaced by the file's text. Constants are one
``#define`` each in CUDA C++, one dictionary in Python. So the source depends only on the template's text and the
constants, and the key hashes both.

A template is read once in a process; its digest and all sources are made from that text. If the file is edited or
upgraded while a process runs, only later processes see it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cache_engine.model.key import sha256

_TEMPLATES = Path(__file__).with_name("templates")
_INCLUDE = re.compile(r'^#include\s+(["<])([^">]+)[">]\s*$', re.MULTILINE)

# Part of every key. Increase it when render() makes another text of the same template and constants.
RENDER_VERSION = "1"

# Kernels whose C is fp8 include the second file in place of the first, and have a constant with its digest. So the text
# of the templates, which is part of the keys of all kernels, does not contain the second file.
_EPILOGUES = ("epilogue.cuh", "fp8_epilogue.cuh")
_FP8_EPILOGUE = "FP8_EPILOGUE"


def render(template: str, constants: Mapping[str, str | int], replacements: Mapping[str, str] | None = None) -> str:
    """The complete source text of a kernel, without any include.

    Args:
        template: the file name in ``templates/``.
        constants: names and values, written in the given order.
        replacements: texts to use in place of the named files (tests replace the hardware).
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
    """SHA-256 (hex) of a template's text with all its includes, and of the version of ``render``."""
    return sha256(f"{RENDER_VERSION}\n{_text(template)}".encode()).hexdigest()


@cache
def fp8_constants() -> dict[str, str | int]:
    """The constants for kernels whose C is fp8; with them, ``render`` includes the epilogue for fp8."""
    return {_FP8_EPILOGUE: template_digest(_EPILOGUES[1])}


@cache
def _text(template: str) -> str:
    """The text of a template with all its includes, as it was when this process first used it."""
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

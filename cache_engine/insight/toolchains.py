"""The toolchains that made a store's kernels, compared with the one that is here: which kernels are stale, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cache_engine.cache.cache import Cache
from cache_engine.errors import CompilerMissing
from cache_engine.model.fingerprint import toolchain_text
from cache_engine.model.gemm.fields import FAST_MATH

PRESENT, STALE, UNKNOWN = "present", "stale", "unknown"


@dataclass(slots=True)
class Made:
    """Kernels made by one compiler, as far as the same is true of them.

    Attributes:
        compiler, version: the compiler that made them, and
        toolchain: the same with its build, which identifies its binaries by content, and with its environment.
        state: ``present`` when they can be hit here, ``stale`` when they never can, ``unknown`` when their compiler is
            not installed here, so it is unknown.
        changed: of stale ones, in words, what is another here.
        entries, size_bytes, stored_bytes, compile_ms, hits: sums over them.
        first_made_at, last_made_at: seconds since 1970.
    """

    compiler: str
    version: str
    toolchain: str
    state: str
    changed: tuple[str, ...]
    entries: int = 0
    size_bytes: int = 0
    stored_bytes: int = 0
    compile_ms: float = 0.0
    hits: int = 0
    first_made_at: float = float("inf")
    last_made_at: float = 0.0
    archs: list[str] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)

    @property
    def build(self) -> str:
        """What identifies the compiler's binaries, and the variables of the environment that reach it."""
        return self.toolchain.removeprefix(f"{self.compiler} {self.version} ")


def made_by_toolchain(cache: Cache, ways: Iterable[dict[str, Any]]) -> list[Made]:
    """Sums for each compiler and for what makes its kernels stale: first the present ones, then the latest made.

    Args:
        ways: the rows of ``mirror.queries.made_with``.
    """
    found: dict[tuple[Any, ...], Made] = {}
    for way in ways:
        state, changed = _state(cache, way)
        identity = (way["compiler"], way["compiler_version"], way["toolchain"], state, changed)
        made = found.setdefault(identity, Made(*identity))
        for name in ("entries", "size_bytes", "stored_bytes", "compile_ms", "hits"):
            setattr(made, name, getattr(made, name) + way[name])
        made.first_made_at = min(made.first_made_at, way["first_made_at"])
        made.last_made_at = max(made.last_made_at, way["last_made_at"])
        for names, name in ((made.archs, "arch"), (made.families, "family"), (made.dtypes, "dtype")):
            if way[name] not in names:
                names.append(way[name])
    return sorted(found.values(), key=lambda made: (made.state != PRESENT, -made.last_made_at))


def _state(cache: Cache, way: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Whether kernels made in a way can be hit here, and what has changed if they cannot."""
    try:
        fast = FAST_MATH in way["flags"].split()
        components = cache.present_components(way["family"], way["compiler"], way["opt_level"], way["arch"], fast)
    except CompilerMissing:
        return UNKNOWN, ()
    except ValueError:  # a record made up: no key can be made of what it says
        return STALE, ("nothing here makes such kernels",)
    if components is None:
        return STALE, ("this program has no such family or compiler",)
    now = dict(components)
    toolchain = toolchain_text(now)
    changed = []
    if way["toolchain"] != toolchain and not cache.settings.serves_any_toolchain:
        version = now["compiler_version"]
        if way["compiler_version"] != version:
            changed.append(f"{way['compiler']} is {version} here")
        elif way["toolchain"].split(" ")[:3] == toolchain.split(" ")[:3]:
            changed.append(f"environment variables that {way['compiler']} reads")
        else:
            changed.append(f"another build of {version}")
    if way["template"] != now["template"]:
        changed.append(f"the template of {way['family']}")
    if way["flags"] != now["flags"]:
        changed.append("the compiler's flags")
    if way["key_schema"] != now["schema"]:
        changed.append("how keys are made")
    return (STALE, tuple(changed)) if changed else (PRESENT, ())

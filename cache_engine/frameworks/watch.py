"""A watch over the caches that a running command fills: counts their kernels, and those compiled while it runs.

A poll reads the directories with the readers of ``frameworks``; nothing is hooked into the command. So kernels that
stay only in memory cannot be seen. The report lists these kinds of kernels, and says "0 seen", never "0 compiles".
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.registry import Sources, in_memory_here, load_sources, surroundings, survey
from cache_engine.frameworks.values import Entry, Place, ScanFinding, State, Unchanged, name_of
from cache_engine.model.artifact import Seconds
from cache_engine.settings import variable as variable_of
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout, is_run_name
from cache_engine.store.publish import publish_file

CACHES = {
    "triton": "TRITON_CACHE_DIR",
    "inductor": "TORCHINDUCTOR_CACHE_DIR",
    "vllm": "VLLM_CACHE_ROOT",
    "jax": "JAX_COMPILATION_CACHE_DIR",
    "flashinfer": "FLASHINFER_WORKSPACE_BASE",
    "deepgemm": "DG_JIT_CACHE_DIR",
    "cutile": "CUDA_TILE_CACHE_DIR",
    "tilelang": "TILELANG_CACHE_DIR",
    "cupy": "CUPY_CACHE_DIR",
    "compute_cache": "CUDA_CACHE_PATH",
    "torch_extensions": "TORCH_EXTENSIONS_DIR",
}
"""For each framework's folder below the root of a run, the environment variable that makes the framework use it."""

NVCC = (
    "DG_JIT_NVCC_COMPILER", "FLASHINFER_NVCC_LAUNCHER", "PYTORCH_NVCC", "CMAKE_CUDA_COMPILER_LAUNCHER",
)  # fmt: skip
"""The variables that name a program to run in place of nvcc, or in front of it."""

BEFORE, AFTER = "before", "after"
"""The phases: before and after the command was ready. Without a sign that it is ready, all compiles are in the first.
"""

NEW, OTHER_KEY, AGAIN = "no kernel of this name was there", "it was there under another key", "it was written again"
"""Causes of compiles, as far as the caches show them: another key means another version, target, option or source."""

NEVER_SEEN = (
    "kernels that a process keeps in memory alone: NVRTC in XLA and CuPy, CuTe DSL",
    "JAX's compiles under its threshold, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS, by default one second",
    "extensions of PyTorch, whose folder is not read",
    "processes that set the variables themselves, and hosts that do not inherit them",
)
"""Compiles that leave no file in a watched directory."""

_STAGED = ("triton", "deepgemm")
"""Frameworks that write a file at the end of each stage of a compile."""
_BY_NAME = {
    "jax": re.compile(".+-cache"), "inductor": re.compile("fxgraph/.+"), "compute_cache": re.compile("(?!index$).+"),
}  # fmt: skip
"""Patterns for the ids of compiles (programs, graphs, kernels), for each cache that also has other entries."""
_MOST_KERNELS = 10_000


class Compiled(msgspec.Struct, frozen=True):
    """A kernel that was compiled while the command ran.

    Attributes:
        phase: ``before`` or ``after`` the command was ready.
        seen_at: when the kernel's files were written or, if unknown, first seen, in seconds since 1970.
        stages_ms: the milliseconds of each stage of its compile, if the times of its files show them.
        cause: why it was compiled: one of ``NEW``, ``OTHER_KEY`` and ``AGAIN``.
    """

    framework: str
    name: str
    id: str
    phase: str
    seen_at: Seconds
    stages_ms: dict[str, float]
    cause: str = NEW

    @property
    def seconds(self) -> float | None:
        """The seconds that the compile took; ``None`` if no file shows it."""
        return sum(self.stages_ms.values()) / 1e3 if self.stages_ms else None


class Framework(msgspec.Struct):
    """The kernels of one framework: the number found, the number compiled in each phase, and the seconds if known."""

    found: int = 0
    before: int = 0
    after: int = 0
    seconds: float = 0.0


class Run(msgspec.Struct, kw_only=True):
    """The report of a run.

    Attributes:
        exit_code: the command's exit code, or 128 plus the number of the signal that ended it; ``None`` while it runs.
        ready_at: when the command was ready, in seconds since 1970; ``None`` if it was not, or if nothing shows it.
        compiled: the first 10,000 compiles seen; ``frameworks`` counts all.
        not_watched: kinds of compiles that the report cannot see.
        findings: files that could not be read.
    """

    command: list[str]
    root: str
    started_at: Seconds
    ended_at: Seconds | None = None
    exit_code: int | None = None
    ready_at: Seconds | None = None
    frameworks: dict[str, Framework] = msgspec.field(default_factory=dict)
    compiled: list[Compiled] = msgspec.field(default_factory=list)
    not_watched: list[str] = msgspec.field(default_factory=list)
    findings: list[str] = msgspec.field(default_factory=list)

    @property
    def found(self) -> int:
        """The number of kernels in all caches of the run."""
        return sum(each.found for each in self.frameworks.values())

    @property
    def before(self) -> int:
        """The number of compiles seen before the command was ready."""
        return sum(each.before for each in self.frameworks.values())

    @property
    def after(self) -> int:
        """The number of compiles seen after the command was ready."""
        return sum(each.after for each in self.frameworks.values())

    @property
    def slowest(self) -> Sequence[Compiled]:
        """The five longest compiles, among those whose time is known."""
        return sorted((one for one in self.compiled if one.seconds), key=lambda one: -(one.seconds or 0.0))[:5]


def redirected(environment: Mapping[str, str], root: Path, launcher: str | None = None) -> dict[str, str]:
    """The variables to set so that each framework caches below ``root``; those already set are left out.

    vLLM itself sets the variables of Triton and Inductor, to folders in its own cache. The store is below ``root`` too,
    for the launcher's results.

    Args:
        launcher: the program to run in place of nvcc; by default nvcc itself runs.
    """
    wanted = {variable: str(root / folder) for folder, variable in CACHES.items()}
    wanted[variable_of("dir")] = str(root / "gemm-cache")
    wanted |= dict.fromkeys(NVCC, launcher) if launcher else {}
    return {variable: value for variable, value in wanted.items() if not environment.get(variable)}


class Watch:
    """Polls the caches of a command that has this environment. Only one thread may use the object."""

    def __init__(self, run: Run, environment: Mapping[str, str], sources: Sources | None = None) -> None:
        """Reads the content of the caches before the command starts."""
        self.run = run
        self._environment = environment
        self._sources = sources or load_sources()
        self._stamps: dict[Place, dict[str, str]] = {}
        self._made_at: dict[tuple[Place, str], float | None] = {}
        self._findings: dict[tuple[Place, str], str] = {}
        self._has_looked_after = False
        self._names: set[tuple[Place, str]] = set()
        for place, entry in self._changed():
            self._made_at[place, entry.id] = entry.created_at
            self._names.add((place, entry.name or entry.id))
        self._count()

    def poll(self) -> float:
        """Looks for new kernels; returns the CPU seconds that this took."""
        began = time.thread_time()
        for place, entry in self._changed():
            known = (place, entry.id)
            made_at = entry.created_at
            is_again = known in self._made_at
            is_new = not is_again or (made_at is not None and made_at != self._made_at[known])
            self._made_at[known] = made_at
            # A file that is written again with an old date was copied there, and not compiled.
            if is_new and (made_at is None or made_at >= self.run.started_at - 1):
                has_name = (place, entry.name or entry.id) in self._names
                self._add(place, entry, AGAIN if is_again else OTHER_KEY if has_name else NEW)
        self._count()
        self._has_looked_after = self.run.ready_at is not None
        return time.thread_time() - began

    def _add(self, place: Place, entry: Entry, cause: str) -> None:
        run, seen_at = self.run, entry.created_at or time.time()
        # What was not there at an earlier look that was after it is ready is after it, whatever the clocks say.
        is_after = self._has_looked_after or (run.ready_at is not None and seen_at > run.ready_at)
        phase = AFTER if is_after else BEFORE
        stages_ms = _stages_ms(place, entry)
        one = Compiled(place.kind, entry.name or entry.id, entry.id, phase, seen_at, stages_ms, cause)
        sums = run.frameworks.setdefault(place.kind, Framework())
        sums.before += not is_after
        sums.after += is_after
        sums.seconds += one.seconds or 0.0
        if len(run.compiled) < _MOST_KERNELS:
            run.compiled.append(one)

    def _count(self) -> None:
        for kind, found in Counter(place.kind for place, _ in self._made_at).items():
            self.run.frameworks.setdefault(kind, Framework()).found = found
        self.run.findings = sorted(self._findings.values())

    def _changed(self) -> Iterator[tuple[Place, Entry]]:
        """Yields complete entries that are new or changed since the last poll; forgets entries that were deleted."""
        places = [place for place in self._sources.places(surroundings((), self._environment)) if not place.replaced_by]
        there: dict[Place, dict[str, str]] = {place: {} for place in places}
        self._findings.clear()
        for place, seen in survey(self._sources, places, self._stamps):
            if isinstance(seen, Unchanged):
                there[place][seen.id] = self._stamps[place][seen.id]
            elif isinstance(seen, ScanFinding):
                where = f"{place.path_text}: {seen.id}" if seen.id else place.path_text
                self._findings[place, seen.id] = f"{where}: {seen.fault}, {seen.detail}"
            elif seen.state == State.COMPLETE or (seen.state == State.UNREAD and place.kind in _BY_NAME):
                there[place][seen.id] = seen.stamp
                if place.kind not in _BY_NAME or _BY_NAME[place.kind].fullmatch(seen.id):
                    yield place, seen
        self._stamps = there


def not_watched(environment: Mapping[str, str]) -> list[str]:
    """The kinds of compiles that a watch with this environment cannot see."""
    found = [f"{each}: keeps its kernels in memory" for each in in_memory_here()]
    if manager := environment.get("TRITON_CACHE_MANAGER"):
        found.append(f"Triton's kernels that {manager} stores (TRITON_CACHE_MANAGER)")
    if environment.get("CUDA_CACHE_DISABLE") == "1":
        found.append("PTX that the driver compiles (CUDA_CACHE_DISABLE)")
    return [*found, *NEVER_SEEN]


def _stages_ms(place: Place, entry: Entry) -> dict[str, float]:
    """The milliseconds of each stage of an entry's compile, from the times of the files that end the stages."""
    if entry.compile_ms is not None:
        return {"compile": entry.compile_ms}
    if place.kind not in _STAGED:
        return {}
    written = []
    for part in entry.parts:
        with suppress(OSError, ValueError):
            written.append((os.stat(place.path / name_of(part.file)).st_mtime_ns, part.name))
    written.sort()
    return {name: (at - before) / 1e6 for (before, _), (at, name) in pairwise(written)}


# ---- The reports of the last runs of ``gemm-cache run``, each a file in the store ----

MOST_KEPT = 50
_MOST_KEPT_KERNELS, _MOST_BYTES = 1000, 16 * 1024**2
GONE = "its files were gone"
_decode = msgspec.json.Decoder(Run).decode


def keep_run(layout: StoreLayout, run: Run) -> None:
    """Stores a run's report, with at most 1,000 compiles, and keeps the last 50 reports. Raises ``OSError``."""
    path = layout.run_path(run.started_at, os.getpid())
    late_first = sorted(run.compiled, key=lambda one: one.phase)  # those after it was ready
    data = msgspec.json.encode(msgspec.structs.replace(run, compiled=late_first[:_MOST_KEPT_KERNELS]))
    publish_file(layout.temp, str(path), data, durable=False)
    for name in _names(layout)[:-MOST_KEPT]:
        with suppress(OSError):
            (layout.runs / name).unlink()


def kept_runs(layout: StoreLayout) -> list[Run]:
    """The stored reports, the newest first, without those that cannot be read."""
    found = []
    for name in reversed(_names(layout)[-MOST_KEPT:]):
        with suppress(OSError, CorruptEntry, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if (data := read_file(layout.runs / name, _MOST_BYTES, trust=layout.trust)) is not None:
                found.append(_decode(data))
    return found


def cause_of(compiled: Compiled, earlier: Iterable[Run]) -> str:
    """The cause of a compile: as its run saw it, or ``GONE`` if an earlier run had compiled the same kernel."""
    known = (one for run in earlier for one in run.compiled if one.id == compiled.id)
    if compiled.cause != AGAIN and any(one.framework == compiled.framework for one in known):
        return GONE
    return compiled.cause


def causes_of(run: Run, earlier: list[Run]) -> list[tuple[str, int, int]]:
    """The causes of a run's compiles: each with the number before and after it was ready, the most frequent first."""
    counts = Counter((cause_of(one, earlier), one.phase == "after") for one in run.compiled)
    names = {name: counts[name, False] + counts[name, True] for name, _ in counts}
    return [(name, counts[name, False], counts[name, True]) for name in sorted(names, key=lambda name: -names[name])]


def _names(layout: StoreLayout) -> list[str]:
    """The file names of the stored reports, the oldest first."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(layout.runs) if is_run_name(name))
    return []

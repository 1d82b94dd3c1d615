"""The toolchains that made a store's kernels, compared with the one installed here and with each other."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from cache_engine.cache.cache import Cache
from cache_engine.errors import CompilerMissing, UsageError
from cache_engine.model.artifact import Record
from cache_engine.model.fingerprint import toolchain_text
from cache_engine.model.measurement import Measurement
from cache_engine.settings import FAST_MATH
from cache_engine.units import defused

PRESENT, STALE, UNKNOWN = "present", "stale", "unknown"


@dataclass(slots=True)
class Made:
    """Sums over the kernels that one toolchain made and that share a state and the reasons for it.

    Attributes:
        compiler, version: the compiler that made the kernels.
        toolchain: the compiler and version with the build, which identifies the compiler's binaries by content, and
            with the environment.
        state: ``present`` when the kernels can be hit here, ``stale`` when they never can be, ``unknown`` when their
            compiler is not installed here.
        changed: for stale kernels, what is different here, in words.
        entries, size_bytes, stored_bytes, compile_ms, hits: sums over the kernels.
        first_made_at, last_made_at: when the first and the last of the kernels were made, in seconds since 1970.
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
        """The identity of the compiler's binaries, and the environment variables that it reads."""
        return self.toolchain.removeprefix(f"{self.compiler} {self.version} ")


def made_by_toolchain(cache: Cache, ways: Iterable[dict[str, Any]]) -> list[Made]:
    """The stored kernels, summed up by toolchain and state: first those that can be hit, then the latest made.

    Args:
        ways: the rows of ``index.queries.made_with``.
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
    """The state of kernels made in one way, as in ``Made``; and for stale ones, the changes that make them so."""
    try:
        fast = FAST_MATH in way["flags"].split()
        components = cache.selector.present(way["family"], way["compiler"], way["opt_level"], way["arch"], fast)
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


# ---- Regressions: changes that another toolchain made to the same kernels ----
#
# They are in registers, spills, code, compile time, time on a GPU.
#
# Two kernels are the same where their keys differ in nothing but the toolchain: compiler version, build and
# environment.

REGISTERS, SPILLS, CODE, COMPILE, TIME = METRICS = ("registers", "spill_bytes", "code_bytes", "compile_ms", "median_us")
_TOOLCHAIN = {"compiler_version", "compiler_build", "environment"}


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one figure, such as the registers, between two toolchains' versions of one kernel.

    Attributes:
        name: the kernel's name.
        from_key, to_key: the keys of both versions; empty for the compile time, which is judged over all kernels.
        metric: the name of the figure, one of ``METRICS``.
        ratio: the later value over the earlier; infinity (``null`` in JSON) if the earlier is 0.
        is_certain: whether the change is more than noise. False for a time whose ranges from p10 to p90 overlap, and
            for the compile time of one kernel; else true.
        where: for a timing, the GPU, m and the drivers of both; else empty.
    """

    name: str
    from_key: str
    to_key: str
    metric: str
    before: float
    after: float
    ratio: float
    is_certain: bool = True
    where: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """The changes of one metric over all kernels.

    Attributes:
        compared: the number of pairs of values compared.
        median_ratio: the median of later values divided by earlier ones; ``None`` without values.
        worse, better: the number of values that certainly grew or fell by a factor of more than 1 + the threshold.
    """

    metric: str
    compared: int
    median_ratio: float | None
    worse: int
    better: int


@dataclass(frozen=True, slots=True)
class Regressions:
    """The changes from one toolchain to another.

    Attributes:
        threshold: the share by which a figure may grow.
        kernels: the number of kernels that both toolchains made.
        summaries: the changes of each metric, summed up, by its name.
        worse: the changes for the worse by more than the threshold, the worst first. The compile time is in it only as
            the median over all kernels, because that of one kernel varies with the machine's other load.
    """

    from_toolchain: str
    to_toolchain: str
    threshold: float
    kernels: int
    summaries: tuple[Summary, ...]
    worse: tuple[Change, ...]


def regressions(
    records: Iterable[Record], timings: Iterable[Measurement], from_: str, to: str, threshold: float
) -> Regressions:
    """Compares the kernels that two toolchains made.

    Args:
        from_, to: the beginning of each toolchain's name, such as ``"nvrtc 13.4"``, or of the digits of its build.
        threshold: the share by which a figure may grow.

    Raises:
        UsageError: when a text fits no toolchain or several, or both fit the same one.
    """
    made: dict[str, dict[frozenset[tuple[str, str]], Record]] = {}
    for record in records:
        same = frozenset(each for each in record.components if each[0] not in _TOOLCHAIN)
        made.setdefault(toolchain_text(dict(record.components)), {})[same] = record
    before, after = _toolchain(made, from_), _toolchain(made, to)
    if before == after:
        raise UsageError(f"--from and --to are both {before}; name two toolchains")
    pairs = [(made[before][same], made[after][same]) for same in made[before].keys() & made[after].keys()]
    changes = [*_static(pairs), *_timed(pairs, timings)]
    summaries = tuple(_summary(metric, changes, threshold) for metric in METRICS)
    worse = [one for one in changes if one.is_certain and one.ratio > 1 + threshold]
    compiles = next(one for one in summaries if one.metric == COMPILE)
    if compiles.median_ratio is not None and compiles.median_ratio > 1 + threshold:
        name = f"median ratio of {compiles.compared} kernels"
        worse.append(Change(name, "", "", COMPILE, 1.0, compiles.median_ratio, compiles.median_ratio))
    worse.sort(key=lambda one: (-one.ratio, one.metric, one.name))
    return Regressions(before, after, threshold, len(pairs), summaries, tuple(worse))


def _toolchain(there: Iterable[str], asked: str) -> str:
    """The only toolchain in ``there`` whose name, or digits of its build, begin with ``asked``; else raises."""
    meant = [
        text for text in there if text.startswith(asked) or any(word.startswith(asked) for word in text.split(" ")[2:])
    ]
    if len(meant) != 1 or not asked.strip():
        which = "several toolchains" if len(meant) > 1 else "no toolchain"
        known = "; ".join(sorted(there)) or "none, as the store is empty"
        raise UsageError(f"{asked!r} means {which} of this store, which has: {known}")
    return meant[0]


def _static(pairs: Iterable[tuple[Record, Record]]) -> Iterator[Change]:
    for old, new in pairs:
        for metric, before, after in (
            (REGISTERS, old.resources.registers, new.resources.registers),
            (SPILLS, old.resources.spill_bytes, new.resources.spill_bytes),
            (CODE, old.size_bytes, new.size_bytes),
            (COMPILE, old.compile_ms, new.compile_ms),
        ):
            yield Change(old.name, old.key, new.key, metric, before, after, _ratio(before, after), metric != COMPILE)


def _timed(pairs: Iterable[tuple[Record, Record]], timings: Iterable[Measurement]) -> Iterator[Change]:
    """For each pair of kernels, the changes between their latest verified timings on one GPU model, m and batch."""
    by_key: dict[str, dict[tuple[str, int, int], Measurement]] = {}
    for one in timings:
        if one.verified:
            latest = by_key.setdefault(one.key, {})
            place = (one.device.name, one.problem.m, one.problem.batch)
            if place not in latest or one.measured_at > latest[place].measured_at:
                latest[place] = one
    for old, new in pairs:
        olds, news = by_key.get(old.key, {}), by_key.get(new.key, {})
        for place in sorted(olds.keys() & news.keys()):
            was, is_now = olds[place], news[place]
            drivers = " → ".join(dict.fromkeys((was.device.driver, is_now.device.driver)))
            where = f"{place[0]}, m = {place[1]}, driver {drivers}"
            apart = _apart(was.timing, is_now.timing)
            times = (was.median_us, is_now.median_us)
            yield Change(old.name, old.key, new.key, TIME, *times, _ratio(*times), apart, where)


def _ratio(before: float, after: float) -> float:
    return after / before if before else float("inf") if after else 1.0


def _apart(was: Mapping[str, object], is_now: Mapping[str, object]) -> bool:
    """Whether the ranges from p10 to p90 of two timings do not overlap; false if a range is unknown."""
    ends = [timing.get(name) for timing in (was, is_now) for name in ("p10_us", "p90_us")]
    numbers = [float(end) for end in ends if isinstance(end, int | float)]
    if len(numbers) != len(ends):
        return False
    was_low, was_high, low, high = numbers
    return low > was_high or high < was_low


def _summary(metric: str, changes: Sequence[Change], threshold: float) -> Summary:
    every = [one for one in changes if one.metric == metric]
    certain = [one.ratio for one in every if one.is_certain]
    return Summary(
        metric,
        len(every),
        median(one.ratio for one in every) if every else None,
        sum(ratio > 1 + threshold for ratio in certain),
        sum(ratio < 1 / (1 + threshold) for ratio in certain),
    )


# ---- Stored timings, as JSON and CSV state them ----

TimingRow = dict[str, Any]
"""A stored timing as a row: every field that the measuring program wrote, whatever its version, and what was measured.
"""


def timing_row(stored: Measurement) -> TimingRow:
    """A stored timing as a row: the results, then the kernel, then the device."""
    about: dict[str, Any] = msgspec.to_builtins(stored)
    fingerprint, timing = about.pop("device"), about.pop("timing")
    return {**timing, **about, "device": fingerprint["name"], "device_fingerprint": fingerprint}


def timings_csv(rows: Iterable[TimingRow]) -> str:
    """Timings as CSV, with a column for each nested field, such as ``config.block_m``."""
    flat = [dict(_flattened(row)) for row in rows]
    columns = dict.fromkeys(name for row in flat for name in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns), restval="")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flattened(row: TimingRow, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{defused(name)}.")
        else:
            yield f"{prefix}{defused(name)}", defused(value) if isinstance(value, str) else value

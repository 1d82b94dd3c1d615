"""Results of tuning in other frameworks' caches: the config that was chosen for each key, and its time if stored.

Most have a file for each key: Triton ``NAME.autotune.json``, Inductor and Helion ``DIGEST.best_config``, FlashInfer's
managed cache ``entries/DIGEST.json``. FlashInfer may also have one file with all keys. Inductor's ``max_autotune`` has
a file for each GPU, ``cache/DIGEST``, with all operations. Sources: ``triton/runtime/autotuner.py`` of 3.9.0,
``PersistentCache`` and ``runtime/autotune_cache.py`` of ``torch/_inductor`` of 2.13 and 2.14,
``helion/autotuner/local_cache.py`` of 1.5.1, ``flashinfer/autotune_cache.py`` and ``autotuner/autotuner.py`` of 0.7.2.
Files are read as JSON, and nothing is trusted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cache_engine.frameworks.folder import MOST_TEXT_BYTES, Folder, Unread
from cache_engine.frameworks.readers.reader import MOST_DEPTH
from cache_engine.frameworks.values import MOST_NAME, Fault, Place, ScanFinding, id_of

ENDINGS = (".autotune.json", ".best_config")
_FLASHINFER = "flashinfer"
_ALL = {_FLASHINFER: re.compile(r"(?s).*\.json"), "inductor": re.compile("cache/[^/.]+")}
_NONE = re.compile("/")
_OF_FILE = ("_metadata", "_generation", "_records")
"""Keys in FlashInfer's file with all results; none of these keys has a result."""
_NO_CHOICE = ("configs_hash", "found_by_coordesc", "time_taken_ms", "triton_cache_hash")


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of tuning for one key.

    Attributes:
        framework: ``triton``, ``inductor``, ``helion`` or ``flashinfer``.
        name: the name of the function or operation; for Inductor, whose files have no name, a digest.
        key: what was tuned for, as text; on two machines, equal keys stand for the same question.
        chosen: the chosen config, as text.
        times_ms: the milliseconds of each config that was tried; empty if the file has no times.
        file: the path of the file below the cache's directory, as ``id_of`` writes it.
    """

    framework: str
    name: str
    key: str
    chosen: str
    file: str
    times_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def ms(self) -> float | None:
        """The milliseconds of the chosen config; ``None`` if the file has no time of it."""
        return self.times_ms.get(self.chosen)


@dataclass(frozen=True, slots=True)
class Different:
    """A key for which two caches chose differently; ``slower`` is the time lost by the worse choice, as a fraction."""

    first: Choice
    second: Choice
    slower: float | None


@dataclass(frozen=True, slots=True)
class TuningCompared:
    """Two caches' results: the number of keys in both, the different choices, and the results of one cache alone."""

    both: int
    different: list[Different]
    only_first: list[Choice]
    only_second: list[Choice]

    @property
    def worst(self) -> float | None:
        """The largest known loss of time, as a fraction of the better config's time; ``None`` if none is known."""
        return max((one.slower for one in self.different if one.slower is not None), default=None)


def choices(place: Place) -> Iterator[Choice | ScanFinding]:
    """Yields the results in a cache, and a finding for each invalid file. Raises ``OSError`` if it cannot be opened."""
    with Folder(place.path) as top:
        for name in _files(top, "", _ALL.get(place.kind, _NONE)):
            try:
                yield from _choices(name, top.read(name, MOST_TEXT_BYTES))
            except FileNotFoundError:
                continue
            except Unread as error:
                yield error.finding(name)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                yield ScanFinding(Fault.DAMAGED, id_of(name), f"it is no result of tuning: {error}")


def _files(folder: Folder, above: str, more: re.Pattern[str]) -> Iterator[str]:
    """Yields the paths of files that may have results, folders in the order of their names.

    ``more`` is a pattern for the paths of such files that have none of the usual endings.
    """
    for item in sorted(folder, key=lambda item: item.name):
        name = f"{above}{item.name}"
        if item.name.endswith(ENDINGS) or more.fullmatch(name):
            yield name
        elif item.is_dir(follow_symlinks=False) and name.count("/") < MOST_DEPTH:
            try:
                with folder.enter(item.name) as below:
                    yield from _files(below, f"{name}/", more)
            except (FileNotFoundError, Unread):
                continue  # a scan of the cache says it


def _choices(file: str, data: bytes) -> Iterator[Choice]:
    document = json.loads(data)  # not msgspec: Triton writes Infinity for a config that failed
    file = id_of(file)
    name = file.rpartition("/")[2]
    if name.endswith(".autotune.json"):
        timed = [(_text(config), _ms(time)) for config, time in document["configs_timings"]]
        times_ms = {config: ms for config, ms in timed if ms is not None}
        function = name.removesuffix(".autotune.json")
        if times_ms:
            chosen = min(times_ms, key=times_ms.__getitem__)
            yield Choice("triton", function, _line(document["key"]), chosen, file, times_ms)
    elif name.endswith(".best_config") and "key" in document:
        fields = document["key"]["fields"]
        what = {each: fields.get(each) for each in ("kernel_source_hash", "specialization_key", "hardware")}
        yield Choice("helion", name.partition(".")[0][:12], _line(what), _text(json.loads(document["config"])), file)
    elif name.endswith(".best_config"):
        config = {each: value for each, value in document.items() if each not in _NO_CHOICE}
        digest = name.partition(".")[0]
        yield Choice("inductor", digest[:12], digest, _text(config), file)
    elif document.keys() >= {"key", "runner", "tactic"}:
        yield _of_flashinfer(document["key"], (document["runner"], document["tactic"]), file)
    elif document.keys() == {"system", "cache"}:
        yield from _of_operations(document["cache"], file)
    elif "_metadata" in document:
        for key, result in document.items():
            if key not in _OF_FILE:
                yield _of_flashinfer(key, result, file)


def _of_operations(operations: Mapping[str, Any], file: str) -> Iterator[Choice]:
    """Yields the fastest choice for each operation, inputs and precision: a template or library, and a digest."""
    for operation, by_inputs in operations.items():
        for inputs, by_precision in by_inputs.items():
            for precision, timed in by_precision.items():
                times_ms = {_line(choice): ms for choice, time in timed.items() if (ms := _ms(time)) is not None}
                if times_ms:
                    chosen = min(times_ms, key=times_ms.__getitem__)
                    key = _line(f"{inputs} {precision}")
                    yield Choice("inductor", id_of(operation[:MOST_NAME]), key, chosen, file, times_ms)


def _of_flashinfer(key: str, result: Any, file: str) -> Choice:
    runner, tactic = result[:2]
    # The key is the text of a tuple, with the operation first.
    operation = key.lstrip("('\"").partition("'")[0].partition('"')[0]
    return Choice(_FLASHINFER, id_of(operation[:MOST_NAME]), _line(key), f"{_line(runner)} {_line(tactic)}", file)


def _text(config: Mapping[str, Any]) -> str:
    """A config as text: the values of ``kwargs`` first, then those of other fields that are set."""
    values = {**(config.get("kwargs") or {}), **{name: value for name, value in config.items() if name != "kwargs"}}
    return " ".join(f"{id_of(str(name))}={_line(value)}" for name, value in values.items() if value is not None)


def _line(value: Any) -> str:
    """A value as text without control characters, equal for equal values."""
    return id_of(value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def _ms(time: Any) -> float | None:
    """A config's time in ms; ``None`` if the config failed. In a list, the first number is taken: the median."""
    found = float(time[0] if isinstance(time, list) else time)
    return found if math.isfinite(found) and found > 0 else None


def compare(first: Iterable[Choice], second: Iterable[Choice]) -> TuningCompared:
    """Compares two caches' results, key by key; if a cache has several results for a key, the last is compared."""
    one, other = ({(each.framework, _asked(each)): each for each in some} for some in (first, second))
    both = [(each, other[key]) for key, each in one.items() if key in other]
    different = [Different(a, b, _slower(a, b)) for a, b in both if a.chosen != b.chosen]
    different.sort(key=lambda each: -(each.slower or 0.0))
    alone = ([each for key, each in mine.items() if key not in theirs] for mine, theirs in ((one, other), (other, one)))
    return TuningCompared(len(both), different, *alone)


def _asked(choice: Choice) -> str:
    """The key by which results are compared: for Triton with the function, as Triton's key has only the arguments."""
    return f"{choice.name}\0{choice.key}" if choice.framework == "triton" else choice.key


def _slower(first: Choice, second: Choice) -> float | None:
    """The larger loss of time if each side used the other side's config: a fraction, by each side's own times."""
    found = []
    for timed, chosen in ((first, second.chosen), (second, first.chosen)):
        best, other = timed.ms, timed.times_ms.get(chosen)
        if best is not None and other is not None:
            found.append(other / best - 1)
    return max(found, default=None)

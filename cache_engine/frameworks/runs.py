"""The reports of the last runs of ``gemm-cache run``, each a file in the store."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.watch import AGAIN, Compiled, Run
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout, is_run_name
from cache_engine.store.publish import publish_file

MOST_KEPT = 50
_MOST_KERNELS, _MOST_BYTES = 1000, 16 * 1024**2
GONE = "its files were gone"
_decode = msgspec.json.Decoder(Run).decode


def keep_run(layout: StoreLayout, run: Run) -> None:
    """Stores a run's report, with at most 1,000 compiles, and keeps the last 50 reports. Raises ``OSError``."""
    path = layout.run_path(run.started_at, os.getpid())
    late_first = sorted(run.compiled, key=lambda one: one.phase)  # those after it was ready
    data = msgspec.json.encode(msgspec.structs.replace(run, compiled=late_first[:_MOST_KERNELS]))
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

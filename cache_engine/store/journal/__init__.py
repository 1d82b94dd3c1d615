"""Usage and events, append-only.

Each process writes to a file that it holds locked. When it ends, another process may append to the file, so there are
about as many files as processes. A background thread writes counts of hits and misses in batches; a killed process
loses at most its last batch. A line cut short by a kill ends at the next writer's newline and is skipped. The same
thread folds (see below) a long journal, so its size is bounded.

To fold means: to add the contents of files that no process holds to the sums in ``snapshot.json``, and then to delete
these files. ``fold`` first renames them, so that no writer reuses them. The snapshot names the files that it contains,
so nothing is counted twice if the process is killed before it deletes them.

``writer`` writes the file of its process; ``snapshot`` reads and folds all files, ``demand`` reads which problems were
asked for, ``lines`` has the file names and the format of a line; ``decisions`` is the log of decisions, which the
background thread also writes.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cache_engine.errors import LockTimeout
from cache_engine.store.journal.lines import SNAPSHOT, UnknownSnapshot, is_long, journal_state
from cache_engine.store.journal.writer import Journal, NoJournal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import file_lock

if TYPE_CHECKING:
    from cache_engine.store.journal.decisions import (
        DecisionLog,
        DecisionReader,
        append_decisions,
        damaged_decisions,
        mend_decisions,
    )
    from cache_engine.store.journal.snapshot import (
        Snapshot,
        damaged_lines,
        events_by_file,
        fold,
        fold_journal,
        journal_bytes,
        load_snapshot,
        read_events,
        read_journal,
        read_snapshot,
        recent_events,
    )

__all__ = [
    "SNAPSHOT",
    "DecisionLog",
    "DecisionReader",
    "Journal",
    "NoJournal",
    "Snapshot",
    "UnknownSnapshot",
    "append_decisions",
    "damaged_decisions",
    "damaged_lines",
    "events_by_file",
    "fold",
    "fold_journal",
    "fold_when_long",
    "journal_bytes",
    "journal_state",
    "load_snapshot",
    "mend_decisions",
    "read_events",
    "read_journal",
    "read_snapshot",
    "recent_events",
]


def __getattr__(name: str) -> Any:
    """A function that reads the journal, imported at its first use: no hit needs one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "decisions" if name.casefold().endswith(("decisions", "decisionlog", "decisionreader")) else "snapshot"
    return getattr(import_module(f"{__name__}.{place}"), name)


def fold_when_long(layout: StoreLayout) -> int:
    """Folds the journal if it has long or old files that no process holds; returns the number of files folded.

    Does nothing while other maintenance runs. So even in a store that is only read, the journal has at most
    ``LONG_BYTES`` and one file per process.

    Raises:
        OSError: when writing fails.
    """
    if not is_long(layout.journal):
        return 0
    from cache_engine.store.journal.snapshot import fold_journal

    with suppress(LockTimeout), file_lock(layout.maintenance_lock, 0):
        return fold_journal(layout)
    return 0

"""Usage and events, append-only.

Each process writes to a file that it holds locked. When it ends, another process may append to the file, so there are
about as many files as processes. A background thread writes counts of hits and misses in batches; a killed process
loses at most its last batch. A line cut short by a kill ends at the next writer's newline and is skipped. The same
thread folds a long journal, so its size is bounded.

``fold`` adds the files that no process holds to ``snapshot.json``. It first renames them, so that no writer reuses
them. The snapshot names the files it contains, so nothing counts twice if a kill comes before they are deleted.

``writing`` is the part of each process; ``folding`` reads and folds all files, ``demand`` what they say was asked for,
``lines`` has their names and lines; ``decisions`` is the log of decisions, which the same thread writes.
"""

from cache_engine.store.journal.decisions import (
    DecisionLog,
    DecisionReader,
    append_decisions,
    damaged_decisions,
    mend_decisions,
)
from cache_engine.store.journal.folding import (
    Snapshot,
    damaged_lines,
    fold,
    fold_journal,
    fold_when_long,
    journal_bytes,
    journal_state,
    load_snapshot,
    read_events,
    read_journal,
    read_snapshot,
    recent_events,
)
from cache_engine.store.journal.lines import SNAPSHOT, UnknownSnapshot
from cache_engine.store.journal.writing import Journal, NoJournal

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

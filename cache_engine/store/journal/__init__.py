"""Usage and events, append-only.

Each process writes to a file that it alone holds locked, and leaves it to the next one when it ends, so there are about
as many files as processes at work. Hits and misses are counted in memory and written in batches by a thread of its own;
what is lost when a process is killed is at most its last batch. A line cut short by a kill ends at the next writer's
newline and is skipped. The same thread folds the journal when it is long, so its size is bounded.

``fold`` adds up the files that no process holds into ``snapshot.json``. It first renames them, so that no writer takes
them over, and the snapshot names those it holds, so that a kill before they are deleted counts nothing twice.

``writing`` has what a process does, ``folding`` what is made of it all.
"""

from cache_engine.store.journal.folding import (
    SNAPSHOT,
    Snapshot,
    UnknownSnapshot,
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
)
from cache_engine.store.journal.writing import Journal, NoJournal

__all__ = [
    "SNAPSHOT",
    "Journal",
    "NoJournal",
    "Snapshot",
    "UnknownSnapshot",
    "damaged_lines",
    "fold",
    "fold_journal",
    "fold_when_long",
    "journal_bytes",
    "journal_state",
    "load_snapshot",
    "read_events",
    "read_journal",
    "read_snapshot",
]

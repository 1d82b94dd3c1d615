"""Saved results of the evaluator as tables: read from their files, searched and sorted. No Streamlit here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from app.presenters.columns import Column
from app.presenters.shared import Row, dtypes
from cache_engine.errors import StoreError
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import Entry

ACCELERATORS = (
    Column("Fingerprint", lambda row: row["arch_fingerprint"][:12]),
    Column("Chip", lambda row: row.get("error") or row["chip"]),
    Column("Results", lambda row: row["results"]),
    Column("Corrupt", lambda row: row.get("total_entries", 0) - row["results"] + row.get("corrupt_lines", 0)),
    Column("Hits", lambda row: row.get("cache_hits", 0)),
    Column("Misses", lambda row: row.get("cache_misses", 0)),
    Column("Total search time, s", lambda row: row.get("total_search_time_hours", 0.0) * 3600),
    Column("Last added", lambda row: row.get("last_updated", 0.0), "age"),
)
"""The columns of accelerators with saved results."""


RESULTS = (
    Column("Chip", lambda row: row["chip"] or row["fingerprint"][:12]),
    Column("m × n × k", lambda row: f"{row['m']} × {row['n']} × {row['k']}"),
    Column("Batch", "batch"),
    Column("Dtype", dtypes),
    Column("Search mode", lambda row: _searched(row)),
    Column("Latency, µs", "latency_us"),
    Column("% of peak", "utilization", "share"),
    Column("Tile", "tile"),
    Column("Order", "loop_order"),
    Column("Partition", "partition"),
    Column("Search, ms", "search_ms"),
    Column("Created", "made_at", "age"),
    Column("Last used", "last_used_at", "age"),
)
"""The columns of saved results."""


PRUNED = (
    Column("Chip", lambda one: f"{one.chip} ({one.fingerprint[:8]})" if one.chip else one.fingerprint[:12]),
    Column("Last used", "last_used", "age"),
    Column("Result", "key"),
    Column("Reason", "reason"),
)
"""The columns of saved results that pruning would delete."""


def saved_results(kept: Evaluations) -> tuple[list[Row], list[Row]]:
    """A row for each accelerator with saved results, sorted by name; and a row for each result that can be read."""
    chips, rows = kept.summaries(), list[Row]()
    for chip in chips:
        if "error" not in chip:
            rows += _rows(kept, chip["arch_fingerprint"])
    counts = Counter(row["fingerprint"] for row in rows)
    chips = [{"chip": "", **chip, "results": counts[chip["arch_fingerprint"]]} for chip in chips]
    return sorted(chips, key=lambda chip: (chip["chip"].lower(), chip["arch_fingerprint"])), rows


def _rows(kept: Evaluations, fingerprint: str) -> list[Row]:
    try:
        snapshot = kept.snapshot(fingerprint)
    except StoreError:
        return []  # gone since it was listed
    return [
        _row(fingerprint, snapshot.chip, key, entry, snapshot.usage.get(key, 0.0))
        for key, entry in kept.entries(fingerprint)
    ]


def _row(fingerprint: str, chip: str, key: str, entry: Entry, used: float) -> Row:
    s, r, mode, made = entry.shape, entry.result, entry.search_mode, entry.metadata
    return {
        "fingerprint": fingerprint, "key": key, "m": s.M, "n": s.N, "k": s.K, "batch": s.G,
        "dtype": entry.dtypes.input, "out_dtype": entry.dtypes.output, "tile_search": mode.tile_search,
        "partition_search": mode.partition_search, "reduce_partial_sums": mode.reduce_partial_sums,
        "compute_rate": mode.compute_rate, "latency_us": r.latency_us,
        "utilization": r.effective_utilization, "tile": "×".join(str(r.tile[name]) for name in "mnk"),
        "loop_order": r.order, "partition": "×".join(str(r.partition[name]) for name in "gmnk"),
        "search_ms": made.search_time_ms, "made_at": made.timestamp,
        "last_used_at": max(used, made.timestamp), "chip": chip,
    }  # fmt: skip


def matching(rows: Iterable[Row], text: str) -> list[Row]:
    """The rows that have every word of a text, the newest first.

    A word is one size (``7168``), sizes m×n×k with ``*`` for any (``*x7168x2048``), a type, a part of a chip's name,
    or the start of its fingerprint.
    """
    tests = [_test(word) for word in text.lower().replace("×", "x").split()]
    found = [row for row in rows if all(test(row) for test in tests)]
    return sorted(found, key=lambda row: (-row["made_at"], row["fingerprint"], row["key"]))


def _test(word: str) -> Callable[[Row], bool]:
    """A function that returns whether a row has a word."""
    sizes = word.split("x")
    if len(sizes) > 1 and all(size.isdigit() or size in ("", "*") for size in sizes):
        asked = [(name, size) for name, size in zip("mnk", sizes, strict=False) if size not in ("", "*")]
        return lambda row: all(str(row[name]) == size for name, size in asked)
    if word.isdigit():
        return lambda row: word in (str(row["m"]), str(row["n"]), str(row["k"]))
    return lambda row: word == row["dtype"] or word in row["chip"].lower() or row["fingerprint"].startswith(word)


def _searched(row: dict[str, Any]) -> str:
    searched = [name for name in ("tile", "partition") if row[f"{name}_search"]]
    costs = ["partial sums"] if row["reduce_partial_sums"] else []
    rate = [f"rate × {row['compute_rate']:g}"] if row["compute_rate"] != 1 else []
    return ", ".join([" and ".join(searched) or "nothing", *costs, *rate])

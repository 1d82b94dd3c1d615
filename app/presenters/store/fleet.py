"""Several stores side by side, and their sums. No Streamlit here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from app.presenters.shared import Row, Tile
from app.presenters.store.overview import Check
from cache_engine.model.events import REMOTE, TIERS, hit_rate
from cache_engine.units import counted, human_bytes, human_ms, human_rate


@dataclass(frozen=True, slots=True)
class Node:
    """A store of a fleet.

    Attributes:
        row: the mirror's overview; ``None`` where it cannot be read.
        trouble: why it cannot.
        remote: the state of its remote, if it has one.
    """

    name: str
    path: str
    row: Row | None
    trouble: str = ""
    remote: Check | None = None

    @property
    def hits(self) -> int:
        """Lookups that a tier served."""
        return sum(self.row[f"{tier}_hits"] for tier in TIERS) if self.row else 0

    @property
    def misses(self) -> int:
        """Lookups that none did."""
        return int(self.row["misses"]) if self.row else 0


def fleet_tiles(nodes: Sequence[Node]) -> list[Tile]:
    """The sums over all stores that can be read, over all time."""
    rows = [node.row for node in nodes if node.row is not None]
    hits, misses = sum(node.hits for node in nodes), sum(node.misses for node in nodes)

    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    return [
        Tile(
            "Stores",
            f"{len(rows):,}" if len(rows) == len(nodes) else f"{len(rows):,} of {len(nodes):,}",
            f"Of {counted(len(nodes), 'store')}, so many can be read.",
        ),
        Tile("Kernels", f"{total('entries'):,}", "In all stores; one that several have counts in each."),
        Tile("On disk", human_bytes(total("stored_bytes")), "In all stores."),
        Tile(
            "Hit rate",
            human_rate(hit_rate(hits, misses)),
            f"Of all stores and tiers, over all time: {counted(hits, 'hit')}, {counted(misses, 'miss', 'misses')}.",
        ),
        Tile(
            "Compile time saved",
            human_ms(total("saved_us") / 1e3),
            "Sum of the original compile times of all hits on disk, in packs and in a remote, over all time.",
        ),
    ]


def node_table(nodes: Sequence[Node]) -> list[Row]:
    """Each store."""
    return [
        {
            "Store": node.name,
            "Open": f".?{urlencode({'store': node.name})}",
            "State": "cannot be read" if node.trouble else "fine",
            "Kernels": node.row["entries"] if node.row else None,
            "On disk": node.row["stored_bytes"] if node.row else None,
            "Hits": node.hits if node.row else None,
            "Misses": node.misses if node.row else None,
            "Hit rate": hit_rate(node.hits, node.misses) if node.row else None,
            "From the remote": node.row[f"{REMOTE}_hits"] if node.row else None,
            "Sent to it": node.row["remote_sent"] if node.row else None,
            "Folder": node.path,
        }
        for node in nodes
    ]

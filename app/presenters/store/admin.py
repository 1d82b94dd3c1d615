"""The Admin page's rules, tables and figures."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from pathlib import Path

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, Row, Tile, moment
from app.presenters.store.overview import EVENTS
from cache_engine.model.events import ACTS, CORRUPT, EVICT, SET_ASIDE, UNPUBLISHED
from cache_engine.model.key import is_key
from cache_engine.settings import SETTINGS, Origin, Settings, variable
from cache_engine.store.pack import SUFFIX
from cache_engine.units import bytes_unit, counted, human_age, human_bytes
from cache_engine.upkeep.cleaning import Leftover
from cache_engine.upkeep.integrity import RepairAct
from cache_engine.upkeep.packs import Incoming
from cache_engine.upkeep.plan import Victim
from cache_engine.upkeep.quarantine import Examined, Item

RULES = {
    "settings": "Apply configured limits",
    "expired": "Unused for N days",
    "stale": "Stale toolchain",
    "entries": "Keep at most N kernels",
    "bytes": "Keep at most N GB",
    "disk": "Keep at most N% of disk",
    "archs": "Selected targets",
    "keys": "Selected kernels",
    "foreign": "Another format",
    "all": "Everything",
}
AUDITED = (*ACTS, EVICT, SET_ASIDE, CORRUPT, UNPUBLISHED)
"""What the audit log can show, the acts first."""


def asked_keys(text: str) -> tuple[frozenset[str], int]:
    """The keys of a link (``keys=KEY,KEY``), and how many of its parts are invalid."""
    parts = [part.strip().lower() for part in text.split(",") if part.strip()]
    keys = frozenset(part for part in parts if is_key(part))
    return keys, len(set(parts) - keys)


def rules_offered(keys: Iterable[str]) -> list[str]:
    """The rules to choose from: selected kernels only where a link names some."""
    return [rule for rule in RULES if rule != "keys" or keys]


# ---- Cleanup ----


def victim_table(victims: Iterable[Victim], names: dict[str, str], zone: tzinfo) -> list[Row]:
    """What a cleanup will delete, and why."""
    return [
        {
            "Key": victim.key[:12],
            "Kernel": names.get(victim.key, ""),
            "On disk": victim.stored_bytes,
            "Compile time": victim.compile_s * 1e3,
            "Last used": moment(victim.last_used_at, zone),
            "Why": victim.reason,
        }
        for victim in victims
    ]


def reason_line(victims: Iterable[Victim]) -> str:
    """How many kernels each reason applies to, in words."""
    reasons = Counter(victim.reason for victim in victims)
    return ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())


def leftover_table(leftovers: Iterable[Leftover]) -> list[Row]:
    """Files that every cleanup deletes."""
    return [{"File": leftover.path, "On disk": leftover.stored_bytes, "Why": leftover.reason} for leftover in leftovers]


def arch_table(rows: Iterable[Row]) -> list[Row]:
    """Kernels and bytes for each target."""
    return [{"Target": row["arch"], "Kernels": row["entries"], "On disk": row["stored_bytes"]} for row in rows]


def arch_figure(rows: Sequence[Row], title: str) -> go.Figure:
    """Bytes for each target, as bars with their sizes in words."""
    unit, length = bytes_unit(max((row["stored_bytes"] for row in rows), default=0))
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        marker_color=COLOURS[0],
        y=[html.escape(row["arch"]) for row in rows],
        x=[row["stored_bytes"] / length for row in rows],
        text=[f"{human_bytes(row['stored_bytes'])} · {counted(row['entries'], 'kernel')}" for row in rows],
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    figure.update_layout(
        title=title,
        xaxis_title=f"{unit} on disk",
        yaxis={"type": "category", "autorange": "reversed"},
        height=120 + 34 * len(rows),
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        showlegend=False,
    )
    return figure


# ---- Integrity and quarantine ----


def repair_table(acts: Iterable[RepairAct]) -> list[Row]:
    """What a check found, and what repair does about it."""
    return [
        {
            "Finding": act.finding.kind.value,
            "Cause": act.finding.cause,
            "Repair action": act.finding.remedy,
            "Files": len(act.files),
            "Size": act.stored_bytes,
            "File": act.finding.path,
        }
        for act in acts
    ]


def repair_line(acts: Sequence[RepairAct]) -> str:
    """The repair plan in one sentence."""
    parts = []
    for name, words in (("quarantine", "moved to quarantine"), ("copy", "copied to quarantine"), ("delete", "deleted")):
        chosen = [act for act in acts if act.act == name]
        files, size = sum(len(act.files) for act in chosen), sum(act.stored_bytes for act in chosen)
        if chosen:
            parts.append(f"{counted(files, 'file')} ({human_bytes(size)}) {words}")
    for name, noun, words in (("close", "folder", "closed to others"), ("leave", "finding", "no action")):
        count = sum(act.act == name for act in acts)
        if count:
            parts.append(f"{counted(count, noun)}: {words}")
    return ", ".join(parts)


def repair_files(acts: Iterable[RepairAct]) -> list[Row]:
    """Every file that repair touches."""
    return [
        {"Repair action": act.act, "File": path, "Size": size, "Finding": act.finding.kind.value}
        for act in acts
        for path, size in act.files
    ]


def quarantine_table(items: Iterable[Item], zone: tzinfo) -> list[Row]:
    """What is in quarantine."""
    return [
        {
            "Item": item.key[:12] or item.files[0].original,
            "Quarantined": moment(item.set_aside_at, zone),
            "Why": item.why or "reason unknown",
            "Files": len(item.files),
            "Size": item.stored_bytes,
        }
        for item in items
    ]


def quarantine_properties(item: Item, examined: Examined, zone: tzinfo) -> list[Row]:
    """One item: its files, and the kernel if its record is readable."""
    shown = {"Key": item.key} if item.key else {}
    record = examined.record
    if record is not None:
        shown |= {
            "Kernel": record.name,
            "Target": record.arch,
            "Compiler": f"{record.compiler} {record.compiler_version}",
            "Config": str(record.config),
        }
    shown |= {"Why": item.why or "reason unknown", "State": examined.cause or "valid: can be restored"}
    for file in item.files:
        at = moment(file.set_aside_at, zone)
        when = f", quarantined {at:%Y-%m-%d %H:%M:%S}" if at else ""
        shown[f"File {file.name}"] = f"{human_bytes(file.stored_bytes)}{when}"
    return [{"Property": name, "Value": value} for name, value in shown.items()]


# ---- Packs ----


def incoming_table(incoming: Iterable[Incoming]) -> list[Row]:
    """The kernels of a pack, and what importing does with each."""
    return [
        {
            "Key": entry.key[:12],
            "Kernel": entry.name,
            "Target": entry.arch,
            "Size": entry.stored_bytes,
            "On import": f"reject: {entry.refused}"
            if entry.refused
            else ("skip (already present)" if entry.present else "import"),
        }
        for entry in incoming
    ]


def incoming_sums(incoming: Iterable[Incoming]) -> list[Row]:
    """What will be imported, by target."""
    sums: dict[str, Row] = {}
    for entry in incoming:
        if not entry.present and not entry.refused:
            arch = entry.arch
            row = sums.setdefault(arch, {"arch": arch, "entries": 0, "stored_bytes": 0})
            row["entries"] += 1
            row["stored_bytes"] += entry.stored_bytes
    return [sums[arch] for arch in sorted(sums)]


def safe_name(name: str) -> str:
    """A safe file name made from an uploaded one: no folder, no control character, and a pack's suffix."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name.replace("\\", "/")).name).strip(".-")
    return f"{stem.removesuffix(SUFFIX)[:80].strip('.-') or 'uploaded'}{SUFFIX}"


# ---- Index, settings, audit ----


def mirror_tiles(state: Row, size_bytes: int, now: float) -> list[Tile]:
    """The state of the index."""
    rows = state["rows"]
    return [
        Tile("Last change", human_age(now - state["synced_at"]), "Last time the index changed."),
        Tile("Kernels", f"{rows['kernels']:,}", "Kernels in the index."),
        Tile(
            "Unreadable",
            f"{state['skipped']:,}",
            "Unreadable records, results, timings and journal lines; the integrity check names each.",
        ),
        Tile("Size", human_bytes(size_bytes), "Size of the DuckDB file."),
    ]


_TABLES = {
    "kernels": "Kernels",
    "usage": "Usage counts",
    "events": "Journal events",
    "unreadable": "Unreadable records",
}


def mirror_table(state: Row) -> list[Row]:
    """The number of rows in each table of the index, its generation and its schema."""
    shown = {_TABLES.get(table, table): f"{count:,}" for table, count in state["rows"].items()}
    shown |= {"Generation": str(state["generation"]), "Schema": state["schema_version"]}
    return [{"Property": name, "Value": value} for name, value in shown.items()]


def settings_table(settings: Settings, root: Path) -> list[Row]:
    """The effective settings and their origins, those that differ from the default first."""
    return [
        {
            "Setting": setting.name,
            "Value": _setting_value(settings, setting.name, root),
            "Origin": settings.origin(setting.name),
            "Environment variable": variable(setting.name),
            "Description": setting.metadata["help"],
        }
        for setting in sorted(SETTINGS, key=lambda setting: settings.origin(setting.name) == Origin.DEFAULT)
    ]


def _setting_value(settings: Settings, name: str, root: Path) -> str:
    if name == "dir":
        return str(root)
    shown = settings.shown(name)
    size = getattr(settings, name)
    return f"{human_bytes(size)} ({shown})" if name.endswith("_bytes") and size is not None else shown


def audit_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Actions: when, which, by whom, and how much."""
    return [
        {
            "When": moment(row["happened_at"], zone),
            "Action": kind_words(row["kind"]),
            "Who": row["done_by"] or "unknown",
            "Size": human_bytes(row["stored_bytes"]) if row["stored_bytes"] else "",
            "Details": row["detail"],
            "Key": row["key"][:12],
        }
        for row in rows
    ]


def kind_words(kind: str) -> str:
    """An event's kind as people read it."""
    return EVENTS.get(kind, kind)

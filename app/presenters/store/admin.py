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
from cache_engine.config import SETTINGS, Settings, variable
from cache_engine.model.events import ACTS, CORRUPT, EVICT, SET_ASIDE, UNPUBLISHED
from cache_engine.model.key import is_key
from cache_engine.store.pack import SUFFIX
from cache_engine.units import counted, human_age, human_bytes
from cache_engine.upkeep.cleaning import Leftover
from cache_engine.upkeep.integrity import RepairAct
from cache_engine.upkeep.packs import Incoming
from cache_engine.upkeep.plan import Victim
from cache_engine.upkeep.quarantine import Examined, Item

RULES = {
    "settings": "By the limits in the settings",
    "expired": "Not used for a time",
    "stale": "Made by another toolchain",
    "entries": "Down to a number of kernels",
    "bytes": "Down to a size",
    "disk": "Down to a share of the disk",
    "archs": "Of some targets",
    "keys": "These kernels",
    "all": "Everything",
}
AUDITED = (*ACTS, EVICT, SET_ASIDE, CORRUPT, UNPUBLISHED)
"""What the audit log can show, the acts first."""

_KIB = 1024


def asked_keys(text: str) -> tuple[frozenset[str], int]:
    """The keys of an address (``keys=KEY,KEY``), and how many parts of it are none."""
    parts = [part.strip().lower() for part in text.split(",") if part.strip()]
    keys = frozenset(part for part in parts if is_key(part))
    return keys, len(set(parts) - keys)


def rules_offered(keys: Iterable[str]) -> list[str]:
    """The rules to choose from: that of single kernels only where some are named."""
    return [rule for rule in RULES if rule != "keys" or keys]


# ---- Cleanup ----


def victim_table(victims: Iterable[Victim], names: dict[str, str], zone: tzinfo) -> list[Row]:
    """What a cleanup would evict, and why each."""
    return [
        {
            "Key": victim.key[:12],
            "Kernel": names.get(victim.key, ""),
            "On disk": victim.stored_bytes / _KIB,
            "Last used": moment(victim.last_used_at, zone),
            "Why": victim.reason,
        }
        for victim in victims
    ]


def reason_line(victims: Iterable[Victim]) -> str:
    """How many go for which reason, in words."""
    reasons = Counter(victim.reason for victim in victims)
    return ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())


def leftover_table(leftovers: Iterable[Leftover]) -> list[Row]:
    """Files that go with any cleaning."""
    return [
        {"File": leftover.path, "On disk": leftover.stored_bytes / _KIB, "Why": leftover.reason}
        for leftover in leftovers
    ]


def arch_table(rows: Iterable[Row]) -> list[Row]:
    """Kernels and bytes for each target."""
    return [{"Target": row["arch"], "Kernels": row["entries"], "On disk": row["stored_bytes"] / _KIB} for row in rows]


def arch_figure(rows: Sequence[Row], title: str) -> go.Figure:
    """Bytes for each target, as bars with their sizes in words."""
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        marker_color=COLOURS[0],
        y=[html.escape(row["arch"]) for row in rows],
        x=[row["stored_bytes"] / _KIB for row in rows],
        text=[f"{human_bytes(row['stored_bytes'])} · {counted(row['entries'], 'kernel')}" for row in rows],
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    figure.update_layout(
        title=title,
        xaxis_title="KiB on disk",
        yaxis={"type": "category", "autorange": "reversed"},
        height=120 + 34 * len(rows),
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        showlegend=False,
    )
    return figure


# ---- Integrity and quarantine ----


def repair_table(acts: Iterable[RepairAct]) -> list[Row]:
    """What a check found, and what repair would do to which files."""
    return [
        {
            "Finding": act.finding.kind.value,
            "Repair would": act.finding.remedy,
            "Files": len(act.files),
            "Size": act.stored_bytes / _KIB,
            "Cause": act.finding.cause,
            "File": act.finding.path,
        }
        for act in acts
    ]


def repair_line(acts: Sequence[RepairAct]) -> str:
    """The repair plan in one sentence."""
    parts = []
    for name, words in (("quarantine", "moved to quarantine"), ("delete", "deleted"), ("leave", "left alone")):
        chosen = [act for act in acts if act.act == name]
        files, size = sum(len(act.files) for act in chosen), sum(act.stored_bytes for act in chosen)
        if chosen and name == "leave":
            parts.append(f"{counted(len(chosen), 'finding')} {words}")
        elif chosen:
            parts.append(f"{counted(files, 'file')} ({human_bytes(size)}) {words}")
    return ", ".join(parts)


def repair_files(acts: Iterable[RepairAct]) -> list[Row]:
    """Every file that repair would touch."""
    return [
        {"Repair would": act.act, "File": path, "Size": size / _KIB, "Finding": act.finding.kind.value}
        for act in acts
        for path, size in act.files
    ]


def quarantine_table(items: Iterable[Item], zone: tzinfo) -> list[Row]:
    """What is in quarantine."""
    return [
        {
            "What": item.key[:12] or item.files[0].original,
            "Set aside": moment(item.set_aside_at, zone),
            "Why": item.why or "no longer in the journal",
            "Files": len(item.files),
            "Size": item.stored_bytes / _KIB,
        }
        for item in items
    ]


def quarantine_facts(item: Item, examined: Examined, zone: tzinfo) -> list[Row]:
    """One item: its files, and what is told about the kernel if its record can be read."""
    facts = {"Key": item.key} if item.key else {}
    record = examined.record
    if record is not None:
        facts |= {
            "Kernel": record.name,
            "Target": record.arch,
            "Compiler": f"{record.compiler} {record.compiler_version}",
            "Config": str(record.config),
        }
    facts |= {"Why": item.why or "no longer in the journal", "Now": examined.cause or "sound: it can be put back"}
    for file in item.files:
        at = moment(file.set_aside_at, zone)
        when = f", set aside {at:%Y-%m-%d %H:%M:%S}" if at else ""
        facts[f"File {file.name}"] = f"{human_bytes(file.stored_bytes)}{when}"
    return [{"Fact": name, "Value": value} for name, value in facts.items()]


# ---- Packs ----


def incoming_table(incoming: Iterable[Incoming]) -> list[Row]:
    """The entries of a pack, and what would become of each."""
    return [
        {
            "Key": entry.key[:12],
            "Kernel": "" if entry.record is None else entry.record.name,
            "Target": "" if entry.record is None else entry.record.arch,
            "Size": entry.stored_bytes / _KIB,
            "Import would": f"refuse it: {entry.refused}"
            if entry.refused
            else ("leave what is there" if entry.present else "take it in"),
        }
        for entry in incoming
    ]


def incoming_sums(incoming: Iterable[Incoming]) -> list[Row]:
    """What would be taken in, by target."""
    sums: dict[str, Row] = {}
    for entry in incoming:
        if entry.record is not None and not entry.present and not entry.refused:
            arch = entry.record.arch
            row = sums.setdefault(arch, {"arch": arch, "entries": 0, "stored_bytes": 0})
            row["entries"] += 1
            row["stored_bytes"] += entry.stored_bytes
    return [sums[arch] for arch in sorted(sums)]


def safe_name(name: str) -> str:
    """A file name of ours made from one that was sent: no folder, no control character, and a pack's suffix."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name.replace("\\", "/")).name).strip(".-")
    return f"{stem.removesuffix(SUFFIX)[:80].strip('.-') or 'uploaded'}{SUFFIX}"


# ---- Mirror, settings, audit ----


def mirror_tiles(state: Row, size_bytes: int, now: float) -> list[Tile]:
    """The mirror's state."""
    rows = state["rows"]
    return [
        Tile("Last changed", human_age(now - state["synced_at"]), "When a sync last found something new in the store."),
        Tile("Kernels", f"{rows['kernels']:,}", "Records that are mirrored."),
        Tile(
            "Unreadable",
            f"{state['skipped']:,}",
            "Records, results, timings and lines of the journal that cannot be read; the integrity check names each.",
        ),
        Tile("Size", human_bytes(size_bytes), "Of the DuckDB file."),
    ]


def mirror_table(state: Row) -> list[Row]:
    """The mirror's tables, generation and schema."""
    facts = {f"Rows of {table}": f"{count:,}" for table, count in state["rows"].items()}
    facts |= {"Generation": str(state["generation"]), "Schema": state["schema_version"]}
    return [{"Fact": name, "Value": value} for name, value in facts.items()]


def settings_table(settings: Settings, root: Path) -> list[Row]:
    """What is in force, and where from."""
    return [
        {
            "Setting": setting.name,
            "Value": _setting_value(settings, setting.name, root),
            "From": settings.origin(setting.name),
            "Environment": variable(setting.name),
            "What it does": setting.metadata["help"],
        }
        for setting in SETTINGS
    ]


def _setting_value(settings: Settings, name: str, root: Path) -> str:
    if name == "dir":
        return str(root)
    shown = settings.shown(name)
    return f"{human_bytes(getattr(settings, name))} ({shown})" if name.endswith("_bytes") else shown


def audit_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Who did what, when, and how much."""
    return [
        {
            "When": moment(row["happened_at"], zone),
            "What": kind_words(row["kind"]),
            "Who": row["done_by"] or "not recorded",
            "How much": human_bytes(row["stored_bytes"]) if row["stored_bytes"] else "",
            "Details": row["detail"],
            "Key": row["key"][:12],
        }
        for row in rows
    ]


def kind_words(kind: str) -> str:
    """An event's kind as people read it."""
    return EVENTS.get(kind, kind)

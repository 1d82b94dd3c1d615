"""The rules, tables and figures of the page Storage that are about this store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path

from app.presenters.columns import Column
from app.presenters.shared import Row, kernel_address, moment
from cache_engine.insight.inspection import titled
from cache_engine.settings import Settings, variable
from cache_engine.store.pack import SUFFIX
from cache_engine.units import counted, human_age, human_bytes
from cache_engine.upkeep.integrity import RepairAct
from cache_engine.upkeep.packs import Incoming
from cache_engine.upkeep.plan import Victim
from cache_engine.upkeep.quarantine import Examined, Item

# ---- Cleanup ----


def victim_columns(titles: Mapping[str, str]) -> list[Column]:
    """The columns of kernels that a cleanup will delete; ``titles`` are theirs by key."""
    return [
        Column("Kernel", lambda one: kernel_address(one.key), "link", lambda one: titles.get(one.key, one.key[:12])),
        Column("Key", lambda one: one.key[:12]),
        Column("On disk", "stored_bytes", "bytes"),
        Column("Compile time", lambda one: one.compile_s * 1e3, "ms"),
        Column("Last used", "last_used_at", "age"),
        Column("Why", "reason"),
    ]


def reason_line(victims: Iterable[Victim]) -> str:
    """The number of kernels for each reason, in words."""
    reasons = Counter(victim.reason for victim in victims)
    return ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())


LEFTOVERS = (Column("File", "path"), Column("On disk", "stored_bytes", "bytes"), Column("Why", "reason"))
"""The columns of files that every cleanup deletes besides kernels."""


ARCHS = (
    Column("Target", "arch"),
    Column("Kernels", "entries", "count"),
    Column("On disk", "stored_bytes", "bytes", bar=True),
)
"""The columns of a table of kernels and bytes by target."""


# ---- Integrity and quarantine ----


REPAIRS = (
    Column("Finding", "finding.kind.value"),
    Column("Cause", "finding.cause"),
    Column("Repair action", "finding.remedy"),
    Column("Files", lambda act: len(act.files)),
    Column("Size", "stored_bytes", "bytes"),
    Column("File", "finding.path"),
)
"""The columns of an integrity check's findings, and of their repair."""


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


REPAIRED_FILES = (
    Column("Repair action", lambda one: one[0].act),
    Column("File", lambda one: one[1]),
    Column("Size", lambda one: one[2], "bytes"),
    Column("Finding", lambda one: one[0].finding.kind.value),
)


def repair_files(acts: Iterable[RepairAct]) -> list[tuple[RepairAct, str, int]]:
    """Every file that repair touches, with its size."""
    return [(act, path, size) for act in acts for path, size in act.files]


QUARANTINED = (
    Column("Item", lambda item: item.key[:12] or item.files[0].original),
    Column("Quarantined", "set_aside_at", "age"),
    Column("Why", lambda item: item.why or "reason unknown"),
    Column("Files", lambda item: len(item.files)),
    Column("Size", "stored_bytes", "bytes"),
)


def quarantine_properties(item: Item, examined: Examined, zone: tzinfo) -> dict[str, str]:
    """The properties of a quarantined item: its files, and its kernel if the record is readable."""
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
    return shown


# ---- Packs ----


def _called(entry: Incoming) -> str:
    return titled(entry.record) if entry.record is not None else entry.name


INCOMING = (
    Column("Kernel", _called),
    Column("Key", lambda entry: entry.key[:12]),
    Column("Target", "arch"),
    Column("Size", "stored_bytes", "bytes"),
    Column("On import", lambda entry: _on_import(entry)),
)
"""The columns of the kernels of a pack, and of what importing does with each."""
IMPORTED = (Column("Kernel", lambda one: kernel_address(one.key), "link", _called), *INCOMING[1:4])
"""The columns of the kernels that an import added."""


def _on_import(entry: Incoming) -> str:
    if entry.refused:
        return f"reject: {entry.refused}"
    return "skip (already present)" if entry.present else "import"


def incoming_sums(incoming: Iterable[Incoming]) -> list[Row]:
    """The number of kernels that an import would add and their bytes, by target."""
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


# ---- Index and settings ----


_TABLES = {
    "kernels": "Kernels",
    "usage": "Usage counts",
    "events": "Journal events",
    "unreadable": "Unreadable records",
}


def index_properties(state: Row, size_bytes: int, now: float) -> dict[str, str]:
    """The state of the index by label: its last change, the rows of each table, what it could not read, its size."""
    return {
        "Last change": human_age(now - state["synced_at"]),
        **{_TABLES.get(table, table): f"{count:,}" for table, count in state["rows"].items()},
        "Unreadable records, results, timings and journal lines": f"{state['skipped']:,}",
        "Size": human_bytes(size_bytes),
        "Generation": str(state["generation"]),
        "Schema": state["schema_version"],
    }


def settings_columns(settings: Settings, root: Path) -> list[Column]:
    """The columns of the effective settings and their origins."""
    return [
        Column("Setting", "name"),
        Column("Value", lambda setting: _setting_value(settings, setting.name, root)),
        Column("Origin", lambda setting: settings.origin(setting.name)),
        Column("Environment variable", lambda setting: variable(setting.name)),
        Column("Description", lambda setting: setting.metadata["help"]),
    ]


def _setting_value(settings: Settings, name: str, root: Path) -> str:
    if name == "dir":
        return str(root)
    shown = settings.shown(name)
    size = getattr(settings, name)
    return f"{human_bytes(size)} ({shown})" if name.endswith("_bytes") and size is not None else shown

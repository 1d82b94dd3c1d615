"""The rules of a cleaning: of this store, and of other frameworks' caches.

For each of the two, one function makes what the page previews and the command that does the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from app.presenters.caches import cleaning_arguments
from app.presenters.shared import Tile, share
from cache_engine.frameworks.deletion import CleaningRules
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.model.key import is_key
from cache_engine.settings import parse_bytes
from cache_engine.units import human_bytes
from cache_engine.upkeep.plan import EvictionPlan, Limits

Values = Mapping[str, Any]
"""The values of the form's fields by name, as the page's widgets or its address have them."""
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
"""The rules for this store, by their names in the address."""
OTHER_RULES = {
    "expired": RULES["expired"],
    "versions": "Made by versions",
    "bytes": RULES["bytes"],
    "all": "All that match",
}
"""The rules for other frameworks' caches."""
SIZE, KEEP, SHARE, DAYS = "1GiB", 1000, 50, 30.0
PREFIX = "c_"
"""The beginning of the field names of other frameworks' cleaning, so that a search elsewhere does not limit it."""


def asked_keys(text: str) -> tuple[frozenset[str], int]:
    """The keys of a link (``keys=KEY,KEY``), and how many of its parts are invalid."""
    parts = [part.strip().lower() for part in text.split(",") if part.strip()]
    keys = frozenset(part for part in parts if is_key(part))
    return keys, len(set(parts) - keys)


def rule_in(values: Values, rules: Mapping[str, str]) -> str:
    """The rule that these values name; if none, the selected kernels of a link, else the first rule."""
    named = str(values.get("rule"))
    if named in rules:
        return named
    return "keys" if "keys" in rules and asked_keys(str(values.get("keys") or ""))[0] else next(iter(rules))


def own_cleaning(values: Values) -> tuple[Limits | None, list[str] | None]:
    """The limits of the chosen rule, ``None`` for those in the settings; and the options of ``gemm-cache clean``.

    The options are ``None`` if nothing is chosen yet.

    Raises:
        UsageError: when the size is invalid.
    """
    days = _number(values.get("days"), None)
    keep, percent = (int(_number(values.get(name), at) or 0) for name, at in (("keep", KEEP), ("share", SHARE)))
    size, archs = str(values.get("size", SIZE) or ""), several(values.get("archs"))
    keys = asked_keys(str(values.get("keys") or ""))[0]
    rule = rule_in(values, RULES)
    if rule == "bytes":
        return Limits(max_bytes=parse_bytes(size)), [f"--max-bytes={size}"]
    found: dict[str, tuple[Limits | None, list[str] | None]] = {
        "settings": (None, []),
        "expired": (Limits(expire_days=days), ["--state=expired" if days is None else f"--days={days:g}"]),
        "stale": (Limits(stale_toolchain=True), ["--state=stale"]),
        "entries": (Limits(max_entries=keep), [f"--max-entries={keep}"]),
        "disk": (Limits(max_disk_share=percent / 100), [f"--max-bytes={percent}%"]),
        "archs": (Limits(archs=frozenset(archs)), [f"--arch={arch}" for arch in archs] or None),
        "keys": (Limits(keys=keys), [f"--key={key}" for key in sorted(keys)] or None),
        "foreign": (Limits(foreign_format=True), ["--state=unknown-format"]),
        "all": (Limits(everything=True), ["--all"]),
    }
    return found[rule]


def other_cleaning(values: Values) -> tuple[CleaningRules, list[str] | None]:
    """The rules of a cleaning of other frameworks' caches, and the arguments of ``gemm-cache caches clean``.

    The arguments are ``None`` if nothing is chosen yet, or the command line has no such cleaning.

    Raises:
        UsageError: when the size is invalid.
    """
    rule, irs = rule_in(values, OTHER_RULES), values.get("irs") in (True, "true")
    kinds, archs, states = (tuple(several(values.get(f"{PREFIX}{name}"))) for name in ("kind", "arch", "state"))
    versions = tuple(several(values.get("versions"))) or ("",)  # none chosen: none deleted
    rules = CleaningRules(
        EntryFilter(str(values.get(f"{PREFIX}words") or ""), kinds, archs, states),
        unused_days=_number(values.get("days"), DAYS) if rule == "expired" else None,
        versions=versions if rule == "versions" else (),
        max_bytes=parse_bytes(str(values.get("size", SIZE) or "")) if rule == "bytes" else None,
    )
    if rules.versions == ("",) or (irs and rules.max_bytes is not None):
        return rules, None
    every = ["--all"] if rules.is_everything else []
    return rules, [*cleaning_arguments(rules, kinds), *every, *(["--part", "ir"] if irs else [])]


def several(value: object) -> Sequence[str]:
    """The texts of a value that is one text, several, or nothing."""
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)] if value else []


def _number(value: object, default: float | None) -> float | None:
    """A number of an address or a widget; the default if the value is none."""
    try:
        number = float(str(value))
    except ValueError:
        return default
    return number if math.isfinite(number) else default


def plan_tiles(plan: EvictionPlan, wanted: Limits, policy: Limits, free_bytes: int) -> list[Tile]:
    """Kernels and bytes before and after a cleanup, as shares of the limit in force: the rule's or the settings'."""
    entries, size = len(plan.victims) + plan.kept_entries, plan.freed_bytes + plan.kept_bytes
    given = wanted if (wanted.max_bytes, wanted.max_disk_share) != (None, None) else policy
    of_disk = None if given.max_disk_share is None else int(given.max_disk_share * (free_bytes + size))
    most_bytes = min((most for most in (given.max_bytes, of_disk) if most is not None), default=None)
    most = policy.max_entries if wanted.max_entries is None else wanted.max_entries
    return [
        Tile(
            name,
            f"{text(before)} → {text(after)}",
            "Before and after.",
            None if limit is None else share(after, limit),
            f"of the limit, {text(limit or 0)}",
        )
        for name, text, before, after, limit in (
            ("Kernels", "{:,}".format, entries, plan.kept_entries, most),
            ("On disk", human_bytes, size, plan.kept_bytes, most_bytes),
        )
    ]

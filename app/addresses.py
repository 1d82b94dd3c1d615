"""Addresses of pages and of their parts, and the present address for each address of an earlier version.

This module does not import Streamlit.
"""

from __future__ import annotations

from collections.abc import Mapping

STORED, OTHERS, BY_TARGET, SQL = VIEWS = ("This store", "Other frameworks", "By target", "SQL")
"""The names of the views of the page Kernels; each framework found here adds a view with its title."""
KIND = "framework of the entries"
"""The session variable with the only kind of cache that the page Kernels lists, or ``None`` for all."""
ASKED_FOR, OF_A_MODEL, RUNS = WORKLOADS = ("Asked for", "Of a model", "Runs")
"""The names of the parts of the page Workload."""
STORAGE: Mapping[str, tuple[str, ...]] = {
    "Clean": ("This store", "Other frameworks"),
    "Check": ("Integrity", "Quarantine", "Findings", "Index"),
    "Caches": ("Directories", "Comparison"),
    "Move": ("Packs", "Results"),
    "Log": ("Log",),
    "Settings": ("Settings",),
}
"""The parts of the page Storage, by name, each with the names of its tabs."""
OLD_TABS = {
    "Cleanup": "This store", "Cleaning": "Other frameworks", "Overview": "Directories", "Decisions": "Log",
    "Audit log": "Log",
}  # fmt: skip
"""The present names of tabs, by their names in an earlier version."""
OLD_RULES = {
    "Unused for days": "expired", "Made by versions": "versions", "Down to a size": "bytes", "All that match": "all",
}  # fmt: skip
"""The present names of cleaning rules, by their names in an earlier version."""
MORE, VALIDATION, SAVED = "More", "Validation", "Saved results"
"""The names of the part More of the page Predict, and of its two tabs, which were parts in an earlier version."""
MOVED = ("admin", "architectures", "caches", "coverage", "demand", "evaluations", "farm", "fleet")
"""The pages of earlier versions that no longer exist; ``moved`` says where their content is now."""

Values = dict[str, list[str]]
"""The parameters of an address, by name."""


def moved(page: str, asked: Mapping[str, list[str]]) -> tuple[str, Values]:
    """The present page, and its parameters, for the page and the parameters in an address of an earlier version."""
    kept = dict(asked)
    if page == "caches":
        return _of_caches(kept)
    if page == "evaluations" and kept.get("e_kind") in ([VALIDATION], [SAVED]):
        kept |= {"e_kind": [MORE], "e_more": kept["e_kind"]}
    return {
        "admin": _of_storage(kept),
        "architectures": ("kernels", {**kept, "view": [BY_TARGET]}),
        "coverage": ("workload", {**kept, "part": [OF_A_MODEL]}),
        "demand": ("workload", kept),
        "evaluations": ("predict", kept),
        "farm": ("compile", kept),
        "fleet": ("overview", kept),
    }.get(page, (page, kept))


def _of_caches(asked: Values) -> tuple[str, Values]:
    """The page and parameters for an address of the former page Caches, whose parts are now on Kernels and Storage."""
    text = asked.pop("words", asked.pop("q", []))
    asked |= {"rule": [OLD_RULES.get(rule, rule) for rule in asked["rule"]]} if "rule" in asked else {}
    part = asked.pop("part", ["Entries" if text else "Overview"])[0]
    if part == "Entries":
        return "kernels", {**asked, **({"words": text} if text else {}), "view": [OTHERS]}
    return _of_storage({**asked, **({"words": text} if text else {}), "tab": [part]})


def _of_storage(asked: Values) -> tuple[str, Values]:
    """The page and parameters for an address of a tab of Storage in an earlier version; new ones also name a part."""
    given = next(iter(asked.pop("tab", [])), "")
    return "storage", {**asked, **{name: [value] for name, value in tab_address(OLD_TABS.get(given, given)).items()}}


def tab_address(tab: str) -> dict[str, str]:
    """The parameters that open a tab of Storage, by the tab's name; empty if no tab has that name."""
    part = next((part for part, tabs in STORAGE.items() if tab in tabs), "")
    return {"part": part} | ({part.lower(): tab} if len(STORAGE[part]) > 1 else {}) if part else {}

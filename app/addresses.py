"""Addresses of pages and their parts, and where those of earlier versions lead. No Streamlit here."""

from __future__ import annotations

from collections.abc import Mapping

STORED, BY_TARGET, OTHERS = VIEWS = ("This store", "By target", "Other frameworks")
"""The views of Kernels."""
ASKED_FOR, OF_A_MODEL = WORKLOADS = ("Asked for", "Of a model")
"""The parts of Workload."""
STORAGE: Mapping[str, tuple[str, ...]] = {
    "Clean": ("This store", "Other frameworks"),
    "Check": ("Integrity", "Quarantine", "Findings", "Index"),
    "Caches": ("Directories", "Comparison"),
    "Move": ("Packs", "Results"),
    "Log": ("Decisions", "Audit log"),
    "Settings": ("Settings",),
}
"""The parts of Storage, and the tabs of each."""
PART_OF = {tab: part for part, tabs in STORAGE.items() for tab in tabs}
"""The part of each tab; no two parts have a tab of one name."""
OLD_TABS = {"Mirror": "Index", "Cleanup": "This store", "Cleaning": "Other frameworks", "Overview": "Directories"}
"""Names that tabs had."""
MOVED = ("admin", "architectures", "caches", "coverage", "demand", "evaluations", "farm", "fleet")
"""Pages of earlier versions."""

Values = dict[str, list[str]]
"""The parameters of an address, by name."""


def moved(page: str, asked: Mapping[str, list[str]]) -> tuple[str, Values]:
    """The page that has what an earlier version showed under another address, and its parameters."""
    kept = dict(asked)
    if page == "caches":
        return _of_caches(kept)
    if page == "architectures" and {"model", "dtype", "archs"} & set(kept):  # coverage was a part of it once
        page = "coverage"
    return {
        "admin": _of_storage(kept),
        "architectures": ("kernels", {**kept, "view": [BY_TARGET]}),
        "coverage": ("workload", {**kept, "part": [OF_A_MODEL]}),
        "demand": ("workload", kept),
        "evaluations": ("predict", kept),
        "farm": ("compile", {**kept, "what": ["Farm"]}),
        "fleet": ("overview", kept),
    }.get(page, (page, kept))


def _of_caches(asked: Values) -> tuple[str, Values]:
    """The address that has what the page Caches showed: its parts are on the pages Kernels and Storage now."""
    text = asked.pop("words", asked.pop("q", []))
    part = asked.pop("part", ["Entries" if text else "Overview"])[0]
    if part == "Entries":
        return "kernels", {**asked, **({"words": text} if text else {}), "view": [OTHERS]}
    return _of_storage({**asked, **({"words": text} if text else {}), "tab": [part]})


def _of_storage(asked: Values) -> tuple[str, Values]:
    """The address of Storage for a tab, by its name of now or of earlier: with the part that has the tab."""
    given = next(iter(asked.get("tab", [])), "")
    tab = OLD_TABS.get(given, given)
    return "storage", {**asked, "tab": [tab], "part": [PART_OF[tab]]} if tab in PART_OF else asked

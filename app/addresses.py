"""Addresses of pages and their parts, and where those of earlier versions lead. No Streamlit here."""

from __future__ import annotations

from collections.abc import Mapping

STORED, BY_TARGET, OTHERS, SQL = VIEWS = ("This store", "By target", "Other frameworks", "SQL")
"""The views of Kernels."""
ASKED_FOR, OF_A_MODEL, RUNS = WORKLOADS = ("Asked for", "Of a model", "Runs")
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
    """A tab of earlier versions has a part and another parameter now."""
    given = next(iter(asked.pop("tab", [])), "")
    return "storage", {**asked, **{name: [value] for name, value in tab_address(OLD_TABS.get(given, given)).items()}}


def tab_address(tab: str) -> dict[str, str]:
    """The parameters of a tab of Storage; none for a name that no tab has. No two parts have a tab of one name."""
    return next(({"part": part, part.lower(): tab} for part, tabs in STORAGE.items() if tab in tabs), {})

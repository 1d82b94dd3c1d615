"""Caches: what other frameworks have cached on this machine, by directory, and what is wrong with it. Reads only."""

from __future__ import annotations

import heapq

import streamlit as st

from app import context, widgets
from app.presenters.store.caches import (
    cache_tiles,
    directory_table,
    duplicates_of,
    entry_table,
    finding_table,
    part_figure,
)
from cache_engine.device.probe import local_arch
from cache_engine.foreign.doctor import Diagnosis, code_runs_on, read_mounts
from cache_engine.foreign.remembered import Look, Remembered
from cache_engine.foreign.survey import EntryFilter, Sums, sums
from cache_engine.foreign.values import Place, Seen
from cache_engine.units import counted

ROWS, FINDINGS = 200, 500
_STEP = 500  # entries between two words about progress
_FRESH_S = 30.0
MIB = st.column_config.NumberColumn(format="%.1f MiB")
KIB = st.column_config.NumberColumn(format="%.1f KiB")
AGE = st.column_config.DatetimeColumn(format="distance")
MEDIUM = st.column_config.TextColumn(width="medium")
COUNT = st.column_config.NumberColumn(format="localized")

st.title("Caches")


@st.cache_resource(show_spinner=False)
def remembered() -> Remembered:
    """What this dashboard has seen of other caches."""
    return Remembered()


@st.cache_data(ttl=_FRESH_S, show_spinner=False)
def look(given: tuple[str, ...]) -> tuple[Look, dict[Place, Sums], list[Diagnosis]]:
    """What is there, the sums, and what is wrong; read again after half a minute."""
    bar = st.empty()

    def progress(number: int) -> None:
        if number % _STEP == 0:
            bar.caption(f"{counted(number, 'entry', 'entries')} read…")

    known = remembered()
    seen = known.look(given, progress)
    rows: list[tuple[Place, Seen]] = [(place, each) for place, found in seen.places.items() for each in found]
    rows += [(place, each) for place, found in seen.findings.items() for each in found]
    arch = local_arch()
    runs_here = None if arch is None else code_runs_on(arch)
    wrong = known.examine(seen, runs_here=runs_here, mounts=read_mounts())
    bar.empty()
    return seen, sums(seen.places, rows), wrong


def directories(totals: dict[Place, Sums]) -> None:
    """What is where, and of which parts."""
    sources = remembered().sources.by_kind
    columns = {"On disk": MIB, "Entries": COUNT, **dict.fromkeys(("Oldest", "Newest", "Last used"), AGE)}
    st.dataframe(directory_table(totals, sources, zone), hide_index=True, column_config=columns, key="directories")
    if any(each.size_bytes for each in totals.values()):
        st.plotly_chart(part_figure(totals, sources), key="parts", config={"displayModeBar": False})


def entries(seen: Look) -> None:
    """The newest entries that match."""
    st.subheader("Entries")
    text = st.text_input(
        "Search", key="q", bind="query-params", placeholder="Words of name, target, version, config or id"
    )
    wanted = EntryFilter(text or "")
    found = [(place, each) for place, all_ in seen.places.items() for each in all_ if wanted.takes(place, each)]
    shown = heapq.nlargest(ROWS, found, key=lambda row: row[1].created_at or 0.0)
    if not shown:
        st.caption("No entry of any cache matches." if text else "No cache has an entry.")
        return
    st.caption(f"{counted(len(found), 'entry', 'entries')}, newest first; at most {ROWS} are shown.")
    columns = {**dict.fromkeys(("Shared", "Code", "On disk"), KIB), **dict.fromkeys(("Created", "Last used"), AGE)}
    columns["Config"] = MEDIUM
    rows = entry_table(shown, remembered().sources.by_kind, zone)
    st.dataframe(rows, hide_index=True, column_config=columns, key="entries")
    st.caption("Everything about one, with its PTX and SASS:")
    widgets.command("caches", "show", shown[0][1].id)


def findings(wrong: list[Diagnosis]) -> None:
    """What the doctor says."""
    st.subheader("Findings")
    if not wrong:
        st.caption("Nothing is wrong.")
        return
    columns = {"What to do": st.column_config.TextColumn(width=520), **dict.fromkeys(("Detail", "Where"), MEDIUM)}
    st.dataframe(finding_table(wrong[:FINDINGS]), hide_index=True, column_config=columns, key="findings")
    if len(wrong) > FINDINGS:
        st.caption(f"And {len(wrong) - FINDINGS:,} more:")
        widgets.command("caches", "doctor")


cache, zone = context.cache(), context.timezone()
seen, totals, wrong = look(cache.settings.caches)
if not totals:
    st.info("No cache of another framework is here. The setting caches names directories elsewhere.")
else:
    everything = (each for found in seen.places.values() for each in found)
    widgets.tiles(cache_tiles(totals, len(wrong), duplicates_of(everything)))
    directories(totals)
    findings(wrong)
    entries(seen)
    st.subheader("Cleaning")
    st.caption("Lists what would be deleted; with --delete, deletes that so that no process that uses it fails.")
    widgets.command("caches", "clean", "--days", "30")

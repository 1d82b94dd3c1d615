"""The caches of other frameworks on this machine, by directory, and the findings in them."""

from __future__ import annotations

from collections import Counter

import streamlit as st

from app import context, widgets
from app.caches import cleanup, comparison, entries, scan
from app.components import tables
from app.components.figure import draw_tiles
from app.presenters import caches
from app.presenters.columns import Column
from app.presenters.shared import Row
from cache_engine.frameworks.doctor import Diagnosis, code_runs_on
from cache_engine.frameworks.registry import installed_version
from cache_engine.gpu.probe import local_arch
from cache_engine.index import framework_queries as queries


def diagnoses() -> list[Diagnosis]:
    """The doctor's findings in all caches, and those about code for other GPUs, if this machine's GPU is known."""
    arch = local_arch()
    runs_here = None if arch is None else code_runs_on(arch)
    return [*context.ask(queries.diagnoses), *caches.other_gpu(context.ask(queries.counted, "arch"), runs_here)]


def draw(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """Draws tables of the caches: directories, the bytes of their parts, growth, and stale and duplicate entries."""
    places = known()
    titles = scan.titles()
    framework = caches.framework(titles)
    versions = caches.version_table(context.ask(queries.counted, "version"), installed_version, titles)
    draw_tiles(caches.cache_tiles(places, len(diagnoses()), context.ask(queries.duplicated), versions))
    archs, made_by = context.ask(queries.counted, "arch"), context.ask(queries.counted, "version")
    tables.draw(places, caches.directory_columns(places, archs, made_by, titles), key="directories")
    left, right = st.columns(2)
    tables.section("By part", context.ask(queries.parts), [framework, *caches.PARTS], key="parts", place=left)
    if days := context.ask(queries.growth):
        tables.section("Growth", reversed(days), [framework, *caches.GROWTH], key="growth", place=right)
        right.caption("What is there now. What was deleted meanwhile is not counted.")
    if versions:
        left.header("Versions")
        with left:
            tables.show(versions, kinds={"On disk": "bytes"}, key="versions")
        left.caption(
            "Installed in the Python environment of this dashboard. Stale entries are of no use to it; "
            "other environments may use them."
        )
    duplicates, columns = context.ask(queries.duplicates), caches.duplicate_columns(titles)
    tables.section("Duplicates", duplicates, columns, key="duplicates", place=right)
    not_in_use()


def not_in_use() -> None:
    """Draws the directories that exist, but that the frameworks do not use here."""
    unused = [place for place in scan.places() if place.replaced_by]
    if unused:
        st.header("Not in use here")
        columns = [
            caches.framework(scan.titles()),
            Column("Directory", "path_text"),
            Column("Another is named by", "replaced_by"),
        ]
        tables.draw(unused, columns, key="not-in-use")
        st.caption("These are not read, and a cleaning leaves them. To clean one, name it:")
        widgets.command("caches", "clean", "--in", "DIR")


def draw_findings(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """Draws the findings of the doctor in other frameworks' caches, with their cures."""
    known()
    wrong = diagnoses()
    if not wrong:
        st.caption("Nothing is wrong.")
        return
    counts = Counter(each.ailment.value for each in wrong)
    st.caption(", ".join(f"{name}: {count:,}" for name, count in counts.most_common()))
    tables.draw(wrong, caches.FINDINGS, key="findings")


def draw_comparison(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """Draws the comparison of two directories of one framework."""
    comparison.draw_directories(known())


def draw_entries(view: str, frameworks: dict[str, str]) -> None:
    """Draws the list of the entries in all directories: of the framework that the view is named after, or of all.

    Args:
        frameworks: the frameworks that have a view; if the scan has found others, the page is drawn again.
    """
    known()
    if entries.frameworks() != frameworks:
        st.rerun()
    entries.draw(frameworks.get(view))


def draw_cleaning(permitted: bool) -> None:
    """Draws the tab in which readers delete entries of other frameworks' caches."""
    known()
    cleanup.draw(permitted)


def known() -> list[Row]:
    """The directories that were scanned, as rows of the index; if there are none, the page says so and ends."""
    scan.look()
    places = context.ask(queries.places)
    if not places and not scan.scanner().runs:
        st.info("No cache of another framework is here. The setting caches names directories elsewhere.")
        not_in_use()
    if not places:
        widgets.end_page()
    return places

"""The tab that deletes entries of other frameworks' caches: rules, a preview with reasons, and a confirmation."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import streamlit as st

from app import context, guard, widgets
from app.caches import entries, scan
from app.components import tables
from app.presenters.caches import cleaned_columns, cleaning_arguments, deletion_columns, left_columns
from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.cleanup import Cleaning, cleaning
from cache_engine.frameworks.deletion import Chosen, CleaningRules, Deleted, Plans, choose, plan_cleaning, with_irs
from cache_engine.frameworks.values import DeletePlan
from cache_engine.index import framework_queries as queries
from cache_engine.settings import parse_bytes
from cache_engine.units import counted, human_bytes

DAYS, VERSIONS, SIZE, EVERYTHING = RULES = ("Unused for days", "Made by versions", "Down to a size", "All that match")
SHOWN = 200
_PLANNED, _CLEANED = "planned in caches", "cleaned in caches"


@dataclass(frozen=True, slots=True)
class Preview:
    """The plan of a cleaning as it was shown to the reader, and the rules that it was made for."""

    rules: CleaningRules
    irs_only: bool
    chosen: list[Chosen]
    plans: Plans


def draw() -> None:
    """Draws the tab: the form of the rules, the preview of the deletion, and its confirmation."""
    if _CLEANED in st.session_state:
        st.success(st.session_state.pop(_CLEANED), icon=":material/check_circle:")
    permitted = guard.door()
    st.caption(
        "Deletes in ways that fail no process that uses the cache meanwhile; where no such way is known, entries stay."
    )
    try:
        rules = _rules()
    except GemmCacheError as error:
        widgets.problem("Could not build the preview.", str(error))
        return
    irs_only = st.toggle("Only their IRs: the kernels stay cached", key="irs", bind="query-params")
    preview: Preview | None = st.session_state.get(_PLANNED)
    if st.button("Preview", icon=":material/preview:"):
        preview = _preview(rules, irs_only=irs_only)
        st.session_state[_PLANNED] = preview
        st.session_state["confirm-caches"] = ""
    if preview is None or (preview.rules, preview.irs_only) != (rules, irs_only):
        return
    document = cleaning(preview.chosen, preview.plans, {}, preview.plans)
    _show(document, rules, irs_only=irs_only)
    count = len(document.entries)
    if not count:
        return
    confirmed = widgets.confirmed(f"Type {count} to enable deletion", count, key="confirm-caches", permitted=permitted)
    what = f"the IRs of {counted(count, 'entry', 'entries')}" if irs_only else counted(count, "entry", "entries")
    if st.button(f"Delete {what}", type="primary", icon=":material/delete:", disabled=not confirmed):
        _delete(preview)


def _rules() -> CleaningRules:
    """Draws the form; returns its rules, which are part of the address. Raises ``UsageError`` for an invalid size."""
    takes = entries.chosen(prefix="c_")
    rule = widgets.choose_one("Delete", RULES, DAYS, key="rule")
    if rule == DAYS:
        days = st.number_input("Days", 0.0, 36_500.0, 30.0, format="%g", key="days", bind="query-params", width=200)
        return CleaningRules(takes, unused_days=days)
    if rule == VERSIONS:
        known = sorted({str(row["value"]) for row in context.ask(queries.counted, "version")})
        chosen = st.multiselect("Versions", known, key="versions", bind="query-params")
        return CleaningRules(takes, versions=tuple(chosen) or ("",))  # none chosen: none deleted
    if rule == SIZE:
        text = st.text_input("Size to keep", "1GiB", key="size", max_chars=40, bind="query-params", width=200)
        return CleaningRules(takes, max_bytes=parse_bytes(text or ""))
    return CleaningRules(takes)


def _preview(rules: CleaningRules, *, irs_only: bool) -> Preview:
    with st.spinner("Looking at the entries…"):
        # By this process's environment: another process may have read a directory into the index that it names.
        used = {(place.kind, place.path_text) for place in scan.places() if not place.replaced_by}
        stored = context.cache().query(queries.stored, rules.takes)
        found = [(place, entry) for place, entry in stored if (place.kind, place.path_text) in used]
        chosen = choose(with_irs(found) if irs_only else found, rules, time.time())
        return Preview(rules, irs_only, chosen, plan_cleaning(scan.sources().by_kind, chosen, irs_only=irs_only))


def _show(document: Cleaning, rules: CleaningRules, *, irs_only: bool) -> None:
    what = "the IRs of " if irs_only else ""
    st.caption(
        f"Will delete {what}{counted(len(document.entries), 'entry', 'entries')} ({human_bytes(document.size_bytes)}). "
        f"Of those chosen, {counted(len(document.left), 'entry', 'entries')} will stay."
    )
    titles = scan.titles()
    by_directory = [each for each in document.directories if each.entries]
    if len(by_directory) > 1:
        tables.draw(by_directory, cleaned_columns(titles), key="by-directory")
    if document.entries:
        tables.draw(document.entries[:SHOWN], deletion_columns(titles), key="deletions")
        if len(document.entries) > SHOWN:
            st.caption(f"And {len(document.entries) - SHOWN:,} more.")
    if document.left:
        reasons = Counter((each.kind, each.path, each.reason) for each in document.left)
        st.header("What stays, and why")
        tables.draw(reasons.items(), left_columns(titles), key="staying")
    if any(each.no_safe_way for each in document.left) and not irs_only:
        st.caption("Once no process uses these caches, on any machine that shares the directory, this lists them:")
        kinds = tuple(dict.fromkeys(each.kind for each in document.left if each.no_safe_way))
        widgets.command("caches", "clean", *cleaning_arguments(rules, kinds), "--offline")


def _delete(preview: Preview) -> None:
    """Deletes what the preview showed; the page shows the outcome when it is drawn again."""
    cache, bar = context.cache(), st.progress(0.0, "Deleting…")
    plans = {place: plan for place, plan in preview.plans.items() if isinstance(plan, DeletePlan) and plan.deletions}
    count, before = sum(len(plan.deletions) for plan in plans.values()), 0

    def apply(by: str) -> list[Deleted]:
        nonlocal before
        # In any case, even if the reader leaves the page: the plan no longer describes the caches.
        del st.session_state[_PLANNED]
        done = []
        try:
            for place, plan in plans.items():

                def deleted(number: int, before: int = before) -> None:
                    bar.progress(min(1.0, (before + number) / count), "Deleting…")

                done.append(cache.admin.clean_other(place, plan, by=by, on_progress=deleted))
                before += len(plan.deletions)
        finally:
            scan.scanner().forget()
        return done

    done = guard.act("Deletion stopped.", apply)
    bar.empty()
    if done is None:
        return
    freed = human_bytes(sum(each.size_bytes for each in done))
    gone = counted(sum(len(each.ids) for each in done), "entry", "entries")
    stayed = count - sum(len(each.ids) for each in done)
    meanwhile = f" {counted(stayed, 'entry', 'entries')} stayed: used or changed since the preview." if stayed else ""
    what = f"the IRs of {gone}" if preview.irs_only else gone
    st.session_state[_CLEANED] = f"Deleted {what}, {freed}.{meanwhile}"
    st.rerun()

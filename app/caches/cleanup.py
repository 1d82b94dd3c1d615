"""The part Clean for other frameworks' caches: which entries a rule deletes and why, and which stay."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

import streamlit as st

from app import context, widgets
from app.admin.cleanup import Progress, choose_rule, confirm, show_outcome
from app.caches import entries, scan
from app.components import tables
from app.presenters.caches import CLEANED, DELETIONS, LEFT, cleaning_arguments, framework
from app.presenters.cleaning import DAYS, OTHER_RULES, PREFIX, other_cleaning
from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.cleanup import Cleaning, cleaning
from cache_engine.frameworks.deletion import Chosen, CleaningRules, Deleted, Plans, choose, plan_cleaning, with_irs
from cache_engine.frameworks.values import DeletePlan
from cache_engine.index import framework_queries as queries
from cache_engine.units import counted, human_bytes

_PLANNED = "planned in caches"


@dataclass(frozen=True, slots=True)
class Preview:
    """The plan of a cleaning as it was shown to the reader, and the rules that it was made for."""

    rules: CleaningRules
    irs_only: bool
    chosen: list[Chosen]
    plans: Plans


def draw(permitted: bool) -> None:
    """Draws the form of the rule, the preview of the deletion from other frameworks' caches, and its confirmation."""
    show_outcome()
    st.caption(
        "Deletes in ways that fail no process that uses the cache meanwhile; where no such way is known, entries stay."
    )
    takes = entries.chosen(prefix=PREFIX)
    values = choose_rule(OTHER_RULES, _versions, DAYS)
    irs_only = st.toggle("Only their IRs: the kernels stay cached", key="irs", bind="query-params")
    try:
        rules, _ = other_cleaning(
            {
                **values,
                f"{PREFIX}words": takes.text,
                f"{PREFIX}kind": takes.kinds,
                f"{PREFIX}arch": takes.archs,
                f"{PREFIX}state": takes.states,
            }
        )
    except GemmCacheError as error:
        widgets.problem("Could not build the preview.", str(error))
        return
    preview: Preview | None = st.session_state.get(_PLANNED)
    if st.button("Preview", icon=":material/preview:"):
        preview = st.session_state[_PLANNED] = _preview(rules, irs_only=irs_only)
        st.session_state["confirm"] = ""
    if preview is None or (preview.rules, preview.irs_only) != (rules, irs_only):
        return
    document = cleaning(preview.chosen, preview.plans, {}, preview.plans)
    _show(document, rules, irs_only=irs_only)
    count = len(document.entries)
    what = counted(count, "entry", "entries")
    confirm(count, f"the IRs of {what}" if irs_only else what, permitted, partial(_delete, preview))


def _versions() -> list[str]:
    return scan.choices(partial(entries.counted_values, "version"), "versions")


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
    whose = framework(scan.titles())
    by_directory = [each for each in document.directories if each.entries]
    if len(by_directory) > 1:
        tables.draw(by_directory, [whose, *CLEANED], key="by-directory")
    if document.entries:
        tables.draw(document.entries, [whose, *DELETIONS], key="deletions")
    if document.left:
        counts = Counter((each.kind, each.path, each.reason) for each in document.left)
        reasons = [
            {"kind": kind, "path": path, "reason": why, "count": count} for (kind, path, why), count in counts.items()
        ]
        st.header("What stays, and why")
        tables.draw(reasons, [whose, *LEFT], key="staying")
    if any(each.no_safe_way for each in document.left) and not irs_only:
        st.caption("Once no process uses these caches, on any machine that shares the directory, this lists them:")
        kinds = tuple(dict.fromkeys(each.kind for each in document.left if each.no_safe_way))
        widgets.command("caches", "clean", *cleaning_arguments(rules, kinds), "--offline")


def _delete(preview: Preview, by: str, progress: Progress) -> str:
    # In any case, even if the reader leaves the page: the plan no longer describes the caches.
    del st.session_state[_PLANNED]
    plans = {place: plan for place, plan in preview.plans.items() if isinstance(plan, DeletePlan) and plan.deletions}
    count, before, done = sum(len(plan.deletions) for plan in plans.values()), 0, list[Deleted]()
    try:
        for place, plan in plans.items():

            def deleted(number: int, before: int = before) -> None:
                progress((before + number) / count)

            done.append(context.cache().admin.clean_other(place, plan, by=by, on_progress=deleted))
            before += len(plan.deletions)
    finally:
        scan.scanner().forget()
    freed = human_bytes(sum(each.size_bytes for each in done))
    gone = sum(len(each.ids) for each in done)
    stayed = counted(count - gone, "entry", "entries")
    meanwhile = f" {stayed} stayed: used or changed since the preview." if gone < count else ""
    what = counted(gone, "entry", "entries")
    return f"Deleted {f'the IRs of {what}' if preview.irs_only else what}, {freed}.{meanwhile}"

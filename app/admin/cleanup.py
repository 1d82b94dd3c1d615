"""The part Clean: the form of a rule and its confirmation, and the preview of what a rule deletes from this store."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import streamlit as st

from app import context, guard, widgets
from app.components import tables
from app.components.figure import draw_tiles
from app.presenters.admin import LEFTOVERS, reason_line, victim_columns
from app.presenters.cleaning import KEEP, RULES, SHARE, SIZE, asked_keys, own_cleaning, plan_tiles, rule_in
from app.presenters.shared import Row, rows_shown
from cache_engine.errors import GemmCacheError, IndexUnavailable
from cache_engine.index import queries
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.units import counted, human_age, human_bytes, human_ms
from cache_engine.upkeep.cleanup import Cleaned, Leftover
from cache_engine.upkeep.plan import EvictionPlan, Limits
from cache_engine.upkeep.survey import Survey

SHOWN = 50
_CAPTIONS = {
    "stale": "Kernels built by a compiler or a template that is no longer in use.",
    "foreign": "Kernels in a format that only another version of this program reads. No other rule deletes them.",
}
_SEEN, _PLANNED, _OUTCOME, _ADDRESSED = "entries seen", "planned", "outcome of an act", "rule in the address"
_T = TypeVar("_T")
Progress = Callable[[float], None]
"""Called with the share of a deletion that is done."""
FEW = 2_000
"""The most kernels in a store whose preview is made without a click, as this takes a fraction of a second."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A store's kernels and leftover files when a preview was made; every rule is applied to this state."""

    store: Path
    entries: Survey
    leftovers: list[Leftover]


@dataclass(frozen=True, slots=True)
class Preview:
    """The plan of a cleanup as it was shown to the reader, its sums by target, and the limits that it was made for."""

    limits: Limits
    plan: EvictionPlan
    by_arch: list[Row]
    seen: Seen


def draw(permitted: bool) -> None:
    """Draws the form of the rule, the preview of the deletion from this store, and its confirmation."""
    show_outcome()
    keys, invalid = asked_keys(st.query_params.get("keys", ""))
    values = choose_rule({name: RULES[name] for name in RULES if name != "keys" or keys}, _targets)
    if invalid:
        st.caption(f"{counted(invalid, 'invalid key')} in the link.")
    if values["rule"] == "keys":
        st.caption(f"{counted(len(keys), 'kernel')} from the link.")
    if values["rule"] in _CAPTIONS:
        st.caption(_CAPTIONS[values["rule"]])
    try:
        preview = _preview(own_cleaning(values)[0] or context.cache().admin.policy())
    except GemmCacheError as error:
        widgets.problem("Could not build the preview.", str(error))
        return
    if preview is None:
        return
    _draw_plan(preview)
    count = len(preview.plan.victims)
    confirm(count, counted(count, "kernel"), permitted, partial(_delete, preview.plan))


def choose_rule(rules: Mapping[str, str], choices: Callable[[], Sequence[str]], days: float | None = None) -> Row:
    """Draws the rule and the field of its value; returns their values by name, which are part of the address.

    Args:
        choices: returns the values to choose from, for a rule that has them.
        days: the default number of days; if ``None``, the number in the settings.
    """
    values: Row = {"rule": _chosen_rule(rules), "keys": st.query_params.get("keys", "")}
    rule, bound = values["rule"], dict[str, Any](bind="query-params", width=320)
    if rule == "expired":
        most = context.cache().settings.expire_days if days is None else days
        values["days"] = st.number_input("Days", 0.0, 36_500.0, most, format="%g", key="days", **bound)
    elif rule == "entries":
        values["keep"] = st.number_input("Kernels to keep", 0, 10**9, KEEP, key="keep", **bound)
    elif rule == "disk":
        label = "Store size limit, % of (free space + store)"
        values["share"] = st.slider(label, 1, 100, SHARE, key="share", bind="query-params")
    elif rule == "bytes":
        values["size"] = st.text_input("Size to keep", SIZE, key="size", max_chars=40, **bound)
    elif rule in ("archs", "versions"):
        label = "Targets" if rule == "archs" else "Versions"
        values[rule] = st.multiselect(label, choices(), key=rule, bind="query-params")
    return values


def _chosen_rule(rules: Mapping[str, str]) -> str:
    """The chosen rule or, after a click on a link, the rule in the address."""
    default = rule_in({"keys": st.query_params.get("keys", "")}, rules)
    addressed = rule_in(st.query_params.to_dict(), rules)
    # A quick reader's next choice can end a drawing between the two lines that store the choice before it.
    linked = addressed != st.session_state.get(_ADDRESSED) and not widgets.follows_widget()
    if linked or st.session_state.get("rule") not in rules:
        st.session_state["rule"] = addressed
    rule = st.radio("Delete", list(rules), format_func=lambda name: rules[name], key="rule", horizontal=True)
    st.session_state[_ADDRESSED] = rule
    if rule == default:
        st.query_params.pop("rule", None)
    else:
        st.query_params["rule"] = rule
    return rule


def end_with(outcome: str) -> NoReturn:
    """Draws the page again, after an act of the reader, with the outcome in words at the top."""
    st.session_state[_OUTCOME] = outcome
    st.rerun()


def show_outcome() -> None:
    """Draws the outcome of the act that ended before the page was drawn, if one did."""
    if _OUTCOME in st.session_state:
        st.success(st.session_state.pop(_OUTCOME), icon=":material/check_circle:")


def confirm(count: int, what: str, permitted: bool, delete: Callable[[str, Progress], str]) -> None:
    """Draws the field in which the reader confirms a deletion, and the button; then shows the outcome.

    Args:
        what: what is deleted, with its number, in words.
        delete: deletes what was shown; gets the reader's name, and a function to report the share done; returns the
            outcome in words.
    """
    if not count:
        st.info("Nothing to delete.", icon=":material/check:")
        return
    confirmed = widgets.confirmed(f"Type {count} to enable deletion", count, key="confirm", permitted=permitted)
    asked = st.button(f"Delete {what}", type="primary", icon=":material/delete:", disabled=not confirmed)
    if not (asked and confirmed):  # what a quick reader pressed may be the button of the rule before
        return
    bar = st.progress(0.0, "Deleting…")

    def progress(part: float) -> None:
        bar.progress(min(1.0, part), "Deleting…")

    done = guard.act("Deletion stopped.", lambda by: delete(by, progress))
    bar.empty()
    if done is not None:
        end_with(done)


def _targets() -> list[str]:
    """The targets of the stored kernels; all known targets while the index is unavailable."""
    return _of_index(lambda: context.ask(queries.facets)["arch"], list(ARCHITECTURES))


def _of_index(ask: Callable[[], _T], otherwise: _T) -> _T:
    """The result of ``ask`` on the index; ``otherwise`` while the index is unavailable."""
    try:
        return ask()
    except IndexUnavailable:
        return otherwise


def _preview(limits: Limits) -> Preview | None:
    """The plan as it was first shown for these limits, so that the reader confirms it; ``None`` before a preview.

    A store with more than ``FEW`` kernels is read only when the reader clicks Preview or Refresh; for other limits the
    plan is made from what was read then. A smaller store is read without a click.
    """
    kept: Preview | None = st.session_state.get(_PLANNED)
    seen: Seen | None = st.session_state.get(_SEEN)
    root = context.cache().layout.root
    if seen is not None and seen.store != root:  # the reader has switched to another store
        kept = seen = None
    count: int | None = _of_index(lambda: context.ask(queries.overview)["entries"], None)
    few = count is not None and count <= FEW
    if seen is None and not few:
        many = "its kernels" if count is None else counted(count, "kernel")
        st.text(f"The preview looks at the files of {many}, which may take seconds. Nothing is deleted.")
        asked = st.button("Preview", icon=":material/preview:")
    else:
        asked = st.button("Refresh preview", icon=":material/refresh:", help="Rescan the store.")
    if not asked:
        if kept is not None and kept.limits == limits:
            return kept
        if seen is None and not few:
            return None
    if asked or seen is None or few:
        with st.spinner("Looking at the files…", show_time=True):
            admin = context.cache().admin
            seen = st.session_state[_SEEN] = Seen(root, admin.survey(), admin.find_leftovers())
    plan = _plan(limits, seen.entries)
    keys = [victim.key for victim in plan.victims]
    by_arch: list[Row] = _of_index(lambda: context.cache().query(queries.sums_by_arch, keys), [])
    kept = st.session_state[_PLANNED] = Preview(limits, plan, by_arch, seen)
    st.session_state["confirm"] = ""
    st.session_state["victims-page"] = 1
    return kept


def _plan(limits: Limits, entries: Survey) -> EvictionPlan:
    """Makes the plan of a cleanup within these limits; shows the progress while records are read."""
    bar = st.empty()

    def read(number: int) -> None:
        if number % 500 == 0:
            bar.progress(min(1.0, number / len(entries)), f"Reading records… {number:,} of up to {len(entries):,}")

    plan = context.cache().admin.plan_cleaning(limits, entries, read)
    bar.empty()
    return plan


def _draw_plan(preview: Preview) -> None:
    plan, left, cache = preview.plan, preview.seen.leftovers, context.cache()
    st.caption(f"The store as of {human_age(time.time() - preview.seen.entries.made_at)}.")
    free_bytes = shutil.disk_usage(cache.layout.root).free
    draw_tiles(plan_tiles(plan, preview.limits, cache.admin.policy(), free_bytes))
    size = human_bytes(sum(leftover.stored_bytes for leftover in left))
    leftovers = f" and {counted(len(left), 'leftover file')} ({size})" if left else ""
    st.caption(
        f"Will delete {counted(len(plan.victims), 'kernel')} ({human_bytes(plan.freed_bytes)}, "
        f"{human_ms(plan.compile_s * 1e3)} of compiling){leftovers}. "
        f"Will keep {counted(plan.kept_entries, 'kernel')} ({human_bytes(plan.kept_bytes)})"
        f"{f', {plan.foreign:,} of them of another format' if plan.foreign else ''}"
        f"{f', {plan.pinned:,} of them pinned' if plan.pinned else ''}."
    )
    if not plan.victims:
        return
    st.caption(f"Reasons: {reason_line(plan.victims)}.")
    tables.arch_sums(preview.by_arch, "To be deleted, by target", key="victims-by-arch")
    offset = widgets.paging(len(plan.victims), SHOWN, key="victims-page")
    page = plan.victims[offset : offset + SHOWN]
    tables.draw(page, victim_columns(context.titles(victim.key for victim in page)), key="victims")
    if len(plan.victims) > SHOWN:
        st.caption(f"{rows_shown(offset, len(page), len(plan.victims))}.")
    if left:
        with st.expander(f"Leftover files: {len(left):,}"):
            tables.draw(left, LEFTOVERS, key="leftovers")


def _delete(plan: EvictionPlan, by: str, progress: Progress) -> str:
    # In any case, even if the reader leaves the page: the plan no longer describes the store.
    del st.session_state[_PLANNED], st.session_state[_SEEN]
    count = len(plan.victims)
    cleaned: Cleaned = context.cache().admin.evict(plan, by=by, on_progress=lambda number: progress(number / count))
    skipped = f" {cleaned.skipped:,} skipped: used, replaced or deleted since the preview." if cleaned.skipped else ""
    removed = f" Deleted {counted(cleaned.leftovers, 'leftover file')}." if cleaned.leftovers else ""
    return f"Deleted {counted(cleaned.evicted, 'kernel')}, {human_bytes(cleaned.freed_bytes)}.{skipped}{removed}"

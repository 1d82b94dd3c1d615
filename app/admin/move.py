"""The part Move: exports kernels, imports them after a preview, and prunes and imports the evaluator's results."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from app import context, guard, widgets
from app.addresses import MORE, SAVED
from app.admin.cleanup import end_with, show_outcome
from app.components import into_view, tables
from app.presenters.admin import IMPORTED, INCOMING, incoming_sums, safe_name
from app.presenters.cleaning import asked_keys
from app.presenters.evaluations import CHIPS
from app.presenters.saved_results import PRUNED
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.results import MAX_ENTRIES, UNUSED_DAYS, Taken
from cache_engine.frameworks.bundle_facts import describe
from cache_engine.index import queries
from cache_engine.index.queries import KernelFilter
from cache_engine.model.key import CacheKey
from cache_engine.store.pack import SUFFIX, Pack
from cache_engine.store.results import LARGEST_IMPORT_BYTES, decompress
from cache_engine.units import counted, human_bytes
from cache_engine.upkeep.packs import Exported, Imported, Incoming

MOST_BYTES = 64 * 1024**2
"""The largest pack that goes through the browser, which holds it in memory; the command line has no limit."""
SHOWN = 50
_MADE, _SEEN, _IMPORTED = "pack built", "pack previewed", "pack imported"
BY_NAME = "as the file says"


@dataclass(frozen=True, slots=True)
class Made:
    """A pack to download, and the keys and targets that it was built from."""

    wanted: object
    data: bytes
    exported: Exported


def draw_packs(permitted: bool) -> None:
    """Draws the forms that export kernels to a pack, and import kernels from one."""
    st.header("Export")
    _draw_export()
    st.header("Import")
    _draw_import_of_pack(permitted)


def _draw_export() -> None:
    st.caption(
        "A pack is a single file of kernels: import it into another store, or mount it read-only (setting packs)."
    )
    keys, _ = asked_keys(st.query_params.get("keys", ""))
    archs: list[str] = []
    if keys:
        st.caption(f"Exports only the {counted(len(keys), 'selected kernel')}.")
    else:
        archs = st.multiselect("Targets", context.ask(queries.facets)["arch"], key="export-archs", placeholder="All")
    wanted = (keys, tuple(archs))
    if st.button("Build pack", icon=":material/inventory_2:"):
        try:
            st.session_state[_MADE] = _make(keys, archs)
        except (GemmCacheError, OSError) as error:
            st.session_state.pop(_MADE, None)
            widgets.problem("Could not build the pack.", str(error))
    made: Made | None = st.session_state.get(_MADE)
    if made is None or made.wanted != wanted:
        return
    left_out = made.exported.refused
    if left_out:
        st.warning(f"{counted(len(left_out), 'kernel')} skipped.", icon=":material/warning:")
        for refused in left_out[:5]:
            st.text(f"{refused.key[:12]}: {refused.cause}")
    label = f"Download {counted(made.exported.entries, 'kernel')} ({human_bytes(len(made.data))})"
    widgets.download(label, made.data, f"kernels{SUFFIX}")


def _make(keys: frozenset[str], archs: list[str]) -> Made:
    """Builds a pack in memory.

    Raises:
        UsageError: when the pack is larger than ``MOST_BYTES``.
    """
    cache, wanted = context.cache(), KernelFilter(archs=tuple(archs))
    sums = context.ask(queries.sums_by_arch, sorted(keys)) if keys else context.ask(queries.sizes_of, wanted)
    _check_size(sum(row["stored_bytes"] for row in sums))

    with tempfile.TemporaryDirectory(prefix="gemm-cache-") as folder, st.spinner("Checking and packing…"):
        path = Path(folder) / f"kernels{SUFFIX}"
        named = [CacheKey(key) for key in context.ask(queries.names, sorted(keys))] if keys else None
        exported = cache.admin.export(
            path,
            wanted=lambda record: not archs or record.arch in archs,
            adapted=lambda group: not archs or describe(group).arch in archs,
            keys=named,
        )
        _check_size(path.stat().st_size)
        return Made((keys, tuple(archs)), path.read_bytes(), exported)


def _check_size(size: int) -> None:
    if size > MOST_BYTES:
        raise UsageError(
            f"these kernels take {human_bytes(size)}, and a download is limited to {human_bytes(MOST_BYTES)}; choose "
            f"fewer, or run {context.command('pack', 'export', 'FILE')}"
        )


def _draw_import_of_pack(permitted: bool) -> None:
    done, file, new = st.session_state.pop(_IMPORTED, ("", "", []))
    into_view("imported", file)
    if done:
        st.success(done, icon=":material/check_circle:")
        tables.draw(new, IMPORTED, key="imported")
    st.caption(
        f"Up to {human_bytes(MOST_BYTES)}; import larger packs with gemm-cache pack import. "
        "Kernels are executable GPU code: import only packs you trust."
    )
    if not permitted:
        st.caption("You do not have permission to import; see the top of this page.")
        return
    uploaded = st.file_uploader("Pack", type=[SUFFIX], key="pack", max_upload_size=MOST_BYTES // 1024**2)
    if uploaded is None:
        return
    try:
        incoming = _previewed(uploaded)
    except (GemmCacheError, OSError) as error:
        widgets.problem("Invalid pack.", str(error))
        return
    new = [entry for entry in incoming if not entry.present and not entry.refused]
    refused, present = sum(bool(entry.refused) for entry in incoming), sum(entry.present for entry in incoming)
    size = human_bytes(sum(entry.stored_bytes for entry in new))
    st.caption(
        f"Will import {counted(len(new), 'kernel')} ({size}); {present:,} already present, {refused:,} rejected."
    )
    tables.arch_sums(incoming_sums(incoming), "To be imported, by target", key="incoming-by-arch")
    tables.draw(incoming, INCOMING, key="incoming")
    if not new:
        st.info("Nothing new to import.", icon=":material/check:")
        return
    agreed = st.checkbox("I trust the source of this pack", key="trusted")
    label = f"Import {counted(len(new), 'kernel')}"
    if st.button(label, type="primary", icon=":material/upload:", disabled=not agreed):
        _import(uploaded, len(incoming), new)


def _previewed(uploaded: UploadedFile) -> list[Incoming]:
    """The kernels of an uploaded pack, and what importing does with each; stored until another file is uploaded."""
    if st.session_state.get(_SEEN, ("", None))[0] != uploaded.file_id:
        with tempfile.TemporaryDirectory(prefix="gemm-cache-") as folder, st.spinner("Verifying…"):
            pack = _opened(uploaded, Path(folder))
            st.session_state[_SEEN] = (uploaded.file_id, list(context.cache().admin.preview_import(pack)))
        st.session_state["trusted"] = False
    found: list[Incoming] = st.session_state[_SEEN][1]
    return found


def _import(uploaded: UploadedFile, count: int, new: list[Incoming]) -> None:
    cache, bar = context.cache(), st.progress(0.0, "Importing…")
    done = 0

    def one_done() -> None:
        nonlocal done
        done += 1
        bar.progress(min(1.0, done / count), "Importing…")

    def act(by: str) -> Imported:
        with tempfile.TemporaryDirectory(prefix="gemm-cache-") as folder:
            pack = _opened(uploaded, Path(folder))
            return cache.admin.import_pack(pack, by=by, on_entry=one_done)

    imported = guard.act("Import failed.", act)
    bar.empty()
    if imported is not None:
        del st.session_state[_SEEN]
        size = human_bytes(imported.taken_bytes)
        # With the file's identifier, so that the next import is brought into view too.
        said = f"Imported {counted(imported.taken, 'kernel')}, {size}."
        st.session_state[_IMPORTED] = said, uploaded.file_id, new
        st.rerun()


def _opened(uploaded: UploadedFile, folder: Path) -> Pack:
    """Opens an uploaded pack from a private file; error messages name the uploaded file instead of that path.

    Raises:
        PackUnusable: when the file is not a valid pack.
    """
    path = folder / safe_name(uploaded.name)
    path.write_bytes(uploaded.getbuffer())
    try:
        return context.cache().admin.open_pack(path)
    except GemmCacheError as error:
        raise type(error)(str(error).replace(f"{folder}/", "")) from error


def draw_results(permitted: bool) -> None:
    """Draws the forms for pruning and for import of results."""
    show_outcome()
    st.header("Prune")
    _draw_pruning(permitted)
    st.header("Import")
    _draw_import_of_results(permitted)


def _draw_pruning(permitted: bool) -> None:
    hours = context.cache().settings.cleanup_interval_h
    automatic = (
        f"Every {hours:g} hours, results are pruned with the defaults." if hours else "Automatic pruning is off."
    )
    st.caption(
        "Deletes results that were not used for so many days, and of a chip with more results than the limit the tenth "
        f"that was unused longest. {automatic}"
    )
    left, right = st.columns(2)
    most = int(left.number_input("Results of a chip, at most", 0, 10**9, MAX_ENTRIES, key="prune-entries"))
    days = float(right.number_input("Unused for, days", 0.0, 1e5, UNUSED_DAYS, format="%g", key="prune-days"))
    plan = context.cache().evaluations.plan_pruning(most, days)
    if not plan:
        st.info("Nothing to prune.", icon=":material/check:")
        return
    tables.draw(plan, PRUNED, key="prune-plan")
    label = f"Delete {counted(len(plan), 'result')}"
    # Of what is shown: a click on what was shown before, maybe of another store at this path, is on no button.
    key = f"prune {hash((context.cache().layout.identities(), *((one.fingerprint, one.key) for one in plan)))}"
    if st.button(label, type="primary", icon=":material/delete:", disabled=not permitted, key=key):
        gone = guard.act("Pruning failed.", lambda by: context.cache().evaluations.prune(plan, by=by))
        if gone is not None:
            end_with(f"Deleted {counted(gone, 'result')}.")


def _draw_import_of_results(permitted: bool) -> None:
    st.caption(
        f"An export of results, or a file of the reference evaluator (format 2025.01), up to "
        f"{human_bytes(LARGEST_IMPORT_BYTES)}. Results that are stored already stay; invalid ones are refused."
    )
    if not permitted:
        st.caption("You do not have permission to import; see the top of this page.")
        return
    chips = {name: chip for name, chip in CHIPS.items() if isinstance(chip, Hardware)}
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    uploaded = left.file_uploader(
        "Results", type=["json", "zst"], key="results-file", max_upload_size=LARGEST_IMPORT_BYTES // 2**20
    )
    chip = chips.get(right.selectbox("Chip of a reference file", [BY_NAME, *chips], key="results-chip"))
    if uploaded is None or not st.button("Import", type="primary", icon=":material/upload:"):
        return

    def take(by: str) -> Taken:
        data = decompress(uploaded.getvalue(), LARGEST_IMPORT_BYTES)
        return context.cache().evaluations.import_file(data, chip, by=by)

    taken = guard.act("Import failed.", take)
    if taken is None:
        return
    st.success(
        f"Imported {counted(taken.taken, 'result')}; {taken.present:,} already in the store.",
        icon=":material/check_circle:",
    )
    st.text(f"Chip: {context.cache().evaluations.snapshot(taken.fingerprint).chip} ({taken.fingerprint[:12]})")
    search = taken.fingerprint[:12]
    widgets.page_link("predict", "See saved results", "database", e_kind=MORE, e_more=SAVED, e_q=search)
    if taken.refused:
        st.warning(f"{counted(len(taken.refused), 'result')} refused.", icon=":material/warning:")
        for name, reason in taken.refused[:SHOWN]:
            st.text(f"{name[:80]}: {reason}")

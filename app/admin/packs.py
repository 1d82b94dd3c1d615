"""Packs: kernels out to a file to download, and in from one, looked into first."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from app import context, guard, widgets
from app.presenters.shared import Row
from app.presenters.store.admin import arch_figure, arch_table, asked_keys, incoming_sums, incoming_table, safe_name
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.mirror import queries
from cache_engine.mirror.queries import KernelFilter
from cache_engine.model.artifact import Record
from cache_engine.store.pack import SUFFIX, Pack
from cache_engine.units import counted, human_bytes
from cache_engine.upkeep.packs import Exported, Imported, Incoming

MOST_BYTES = 64 * 1024**2
"""What goes through the browser, out or in: it is held in memory. Larger packs are for the command line."""
SHOWN = 50
_SIZE = st.column_config.NumberColumn(format="%.1f KiB")
_MADE, _SEEN, _TAKEN = "pack made", "pack looked into", "pack taken in"


@dataclass(frozen=True, slots=True)
class Made:
    """A pack that can be downloaded, and what it was made of."""

    wanted: object
    data: bytes
    exported: Exported


def draw(permitted: bool) -> None:
    """Both directions."""
    st.subheader("Out")
    _draw_export()
    st.subheader("In")
    _draw_import(permitted)


def _draw_export() -> None:
    st.caption("A pack is one file of kernels, to be imported elsewhere, or looked up in as it is (setting packs).")
    keys, _ = asked_keys(st.query_params.get("keys", ""))
    archs: list[str] = []
    if keys:
        st.caption(f"Only the {counted(len(keys), 'kernel')} named in the address.")
    else:
        archs = st.multiselect("Targets", context.ask(queries.facets)["arch"], key="export-archs", placeholder="All")
    wanted = (keys, tuple(archs))
    if st.button("Prepare the pack", icon=":material/inventory_2:"):
        try:
            st.session_state[_MADE] = _make(keys, archs)
        except (GemmCacheError, OSError) as error:
            st.session_state.pop(_MADE, None)
            widgets.problem("The pack could not be made.", str(error))
    made: Made | None = st.session_state.get(_MADE)
    if made is None or made.wanted != wanted:
        return
    left_out = made.exported.refused
    if left_out:
        st.warning(
            f"{counted(len(left_out), 'damaged kernel')} left out. Integrity tells more.", icon=":material/warning:"
        )
        for refused in left_out[:5]:
            st.text(f"{refused.key[:12]}: {refused.cause}")
    label = f"Download {counted(made.exported.entries, 'kernel')} ({human_bytes(len(made.data))})"
    st.download_button(
        label, made.data, file_name=f"kernels{SUFFIX}", mime="application/octet-stream", icon=":material/download:"
    )


def _make(keys: frozenset[str], archs: list[str]) -> Made:
    """Makes a pack in memory.

    Raises:
        UsageError: when it would be too large to go through a browser.
    """
    cache = context.cache()
    size = sum(row["stored_bytes"] for row in _expected(keys, archs))
    if size > MOST_BYTES:
        raise UsageError(
            f"these kernels take {human_bytes(size)}, and a download may have {human_bytes(MOST_BYTES)}; choose fewer, "
            "or run gemm-cache export FILE"
        )

    def chosen(record: Record) -> bool:
        return not archs or record.arch in archs

    with tempfile.TemporaryDirectory(prefix="gemm-cache-") as folder, st.spinner("Checking and packing…"):
        path = Path(folder) / f"kernels{SUFFIX}"
        named = [key for key in cache.store.keys() if key in keys] if keys else None  # noqa: SIM118
        exported = cache.export(path, wanted=chosen, keys=named)
        return Made((keys, tuple(archs)), path.read_bytes(), exported)


def _expected(keys: frozenset[str], archs: list[str]) -> list[Row]:
    """What would go into the pack, by target."""
    if keys:
        return context.ask(queries.sums_by_arch, sorted(keys))
    return context.ask(queries.sizes_of, KernelFilter(archs=tuple(archs)))


def _draw_import(permitted: bool) -> None:
    if _TAKEN in st.session_state:
        st.success(st.session_state.pop(_TAKEN), icon=":material/check_circle:")
    st.caption(
        f"Up to {human_bytes(MOST_BYTES)}; larger ones with gemm-cache import. "
        "A kernel is a program for your GPU: import packs only from people whose programs you would run."
    )
    if not permitted:
        st.caption("Importing is off for you, as it says above.")
        return
    uploaded = st.file_uploader("Pack", type=[SUFFIX], key="pack", max_upload_size=MOST_BYTES // 1024**2)
    if uploaded is None:
        return
    try:
        incoming = _looked_into(uploaded)
    except (GemmCacheError, OSError) as error:
        widgets.problem("This pack cannot be imported.", str(error))
        return
    new = [entry for entry in incoming if not entry.present and not entry.refused]
    refused, present = sum(bool(entry.refused) for entry in incoming), sum(entry.present for entry in incoming)
    size = human_bytes(sum(entry.stored_bytes for entry in new))
    st.caption(
        f"Would take in {counted(len(new), 'kernel')} ({size}); {present:,} are there already, {refused:,} are refused."
    )
    _draw_incoming(incoming)
    if not new:
        st.info("There is nothing to take in.", icon=":material/check:")
        return
    agreed = st.checkbox("I would run programs of whoever made this pack", key="trusted")
    label = f"Import {counted(len(new), 'kernel')}"
    if st.button(label, type="primary", icon=":material/upload:", disabled=not agreed):
        _take_in(uploaded, len(incoming))


def _draw_incoming(incoming: list[Incoming]) -> None:
    sums = incoming_sums(incoming)
    if sums:
        figure = arch_figure(sums, "Would be taken in, by target")
        st.plotly_chart(figure, key="incoming-by-arch", config={"displayModeBar": False})
        with st.expander("The same as a table"):
            columns = {"On disk": _SIZE}
            st.dataframe(arch_table(sums), hide_index=True, column_config=columns, key="incoming-by-arch-table")
    offset = widgets.paging(len(incoming), SHOWN, key="incoming-page")
    table = incoming_table(incoming[offset : offset + SHOWN])
    st.dataframe(table, hide_index=True, column_config={"Size": _SIZE}, key="incoming")


def _looked_into(uploaded: UploadedFile) -> list[Incoming]:
    """What importing it would do, kept for as long as it is the same file."""
    if st.session_state.get(_SEEN, ("", None))[0] != uploaded.file_id:
        with tempfile.TemporaryDirectory(prefix="gemm-cache-") as folder, st.spinner("Checking every byte…"):
            pack = _opened(uploaded, Path(folder))
            st.session_state[_SEEN] = (uploaded.file_id, list(context.cache().preview_import(pack)))
        st.session_state["trusted"] = False
        st.session_state["incoming-page"] = 1
    found: list[Incoming] = st.session_state[_SEEN][1]
    return found


def _take_in(uploaded: UploadedFile, count: int) -> None:
    cache, bar = context.cache(), st.progress(0.0, "Importing…")
    done = 0

    def taken() -> None:
        nonlocal done
        done += 1
        bar.progress(min(1.0, done / count), "Importing…")

    def take(by: str) -> Imported:
        with tempfile.TemporaryDirectory(prefix="gemm-cache-") as folder:
            pack = _opened(uploaded, Path(folder))
            return cache.import_pack(pack, by=by, on_entry=taken)

    imported = guard.act("Importing stopped.", take)
    bar.empty()
    if imported is not None:
        del st.session_state[_SEEN]
        size = human_bytes(imported.taken_bytes)
        st.session_state[_TAKEN] = f"Took in {counted(imported.taken, 'kernel')}, {size}."
        st.rerun()


def _opened(uploaded: UploadedFile, folder: Path) -> Pack:
    """The pack, in a private file; what is wrong with it is told without naming that.

    Raises:
        PackUnusable: when it is none.
    """
    path = folder / safe_name(uploaded.name)
    path.write_bytes(uploaded.getbuffer())
    try:
        return Pack(path)
    except GemmCacheError as error:
        raise type(error)(str(error).replace(f"{folder}/", "")) from error

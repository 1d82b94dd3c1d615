"""The scan of other frameworks' caches, in a thread, so that pages show the result of the last scan meanwhile.

Also finds the entry that an address names, and draws links to entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from threading import Lock

import streamlit as st

from app import context, widgets
from app.addresses import OTHERS
from app.presenters.framework_kernels import Address
from cache_engine.background import BackgroundQueue
from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.registry import EntryFilter, Sources, load_sources, surroundings
from cache_engine.frameworks.values import Entry, Place
from cache_engine.index import framework_queries as queries
from cache_engine.index.framework_caches import Progress
from cache_engine.units import counted, human_age

FRESH_S = 30.0
"""Seconds for which pages use a scan before they start another."""
_PATIENCE_S = 0.3
"""Seconds for which a page waits for a scan to end; enough if few entries have changed since the last scan."""
_FIRST_PATIENCE_S = 1.0
"""Seconds for which a page waits for the first scan, before which it has nothing to show."""
_POLL_S = 0.5


class Scanner:
    """Scans at most once at a time, for all readers of this dashboard.

    Attributes:
        entries: the number of entries that the present or last scan has seen.
        where: the directory that the scan is reading.
        trouble: why the last scan failed; empty if it did not fail.
    """

    def __init__(self, scan: Callable[[Progress], object]) -> None:
        self._scan = scan
        self._lock = Lock()
        self._queue = BackgroundQueue(most=1)
        self._ended_at = -float("inf")
        self.entries = 0
        self.where = ""
        self.trouble = ""

    @property
    def runs(self) -> bool:
        """Whether a scan is running now."""
        return not self._queue.is_idle

    @property
    def has_ended(self) -> bool:
        """Whether a scan of this process has come to its end."""
        return self._ended_at > 0

    @property
    def age_s(self) -> float:
        """Seconds since the last scan ended."""
        return time.monotonic() - self._ended_at

    def look(self, patience_s: float) -> None:
        """Starts a scan if the last one is too old or failed; waits for the scan's end for at most ``patience_s``."""
        with self._lock:
            if not self.runs and (self.trouble or self.age_s > FRESH_S):
                self.entries, self.where = 0, ""
                self._queue.put(self._run)
        self._queue.settle(patience_s)

    def forget(self) -> None:
        """Makes the next ``look`` scan again at once, as after a deletion."""
        self._ended_at = -float("inf")

    def _run(self) -> None:
        def progress(entries: int, where: str) -> None:
            self.entries, self.where = entries, where

        try:
            self._scan(progress)
            self.trouble = ""
        except (GemmCacheError, OSError) as error:
            self.trouble = str(error)
        finally:
            self._ended_at = time.monotonic()


def scanner() -> Scanner:
    """The scanner of the store's index."""
    return _scanner(str(context.cache().layout.root))


@st.cache_resource(show_spinner=False)
def _scanner(store: str) -> Scanner:  # noqa: ARG001 (what it is of)
    cache = context.cache()
    return Scanner(lambda progress: cache.scan_caches(progress=progress))


@st.cache_resource(show_spinner=False)
def sources() -> Sources:
    """The readers of each framework's cache."""
    return load_sources()


def places() -> list[Place]:
    """The cache directories that exist now, also those that the frameworks do not use here."""
    return list(sources().places(surroundings(context.cache().settings.caches)))


def titles() -> Mapping[str, str]:
    """The framework's name for people, by the kind of cache."""
    return {kind: source.title for kind, source in sources().by_kind.items()}


def choices(find: Callable[[], Iterable[str]], *names: str) -> list[str]:
    """The choices of a field: the values in the index, and until a scan has ended also those of the address.

    A link is often opened before the scan has read every directory; Streamlit drops a choice that is not offered.

    Args:
        find: asks the index for the values; called after the scan was looked at, since it may end between the two.
        names: the parameters of the address that have the field's values.
    """
    given = () if scanner().has_ended and not scanner().runs else names
    return sorted({*find(), *(value for name in given for value in st.query_params.get_all(name))})


def look() -> None:
    """Updates the index, and shows the scan's progress, the age of the last scan, or why it failed."""
    found = scanner()
    found.look(_PATIENCE_S if found.has_ended else _FIRST_PATIENCE_S)
    with st.container(key="scan"):  # always one line, so that nothing moves when a scan ends
        if found.runs:
            _follow()
        elif found.has_ended:
            st.text(f"Scanned {human_age(found.age_s)}.")
    if found.trouble and not found.runs:
        widgets.problem("The caches could not be scanned. What is shown may be old.", found.trouble)


@st.fragment(run_every=_POLL_S)
def _follow() -> None:
    """Shows the progress of the scan; the page is drawn again when it ends."""
    found = scanner()
    if not found.runs:
        st.rerun()
    where = f" Now in {found.where}" if found.where else ""
    st.text(f"Reading the caches: {counted(found.entries, 'entry', 'entries')} so far.{where}")


def asked(cache: str, entry: str) -> tuple[Address, Entry] | None:
    """The entry that the page's address names, from the index. ``None`` after an error was shown."""
    address = Address.of(st.query_params.get(cache, ""), st.query_params.get(entry, ""))
    found = context.ask(queries.entry, address.place, address.id)
    if found is None:  # as where a link is opened before anything was scanned
        look()
        found = context.ask(queries.entry, address.place, address.id)
    if found is None or address.place.kind not in sources().by_kind:
        widgets.problem("No cache that is looked at has this entry.", f"{address.id} in {address.cache}")
        return None
    return address, found


def matching_link(text: str) -> None:
    """Draws a link to the entries of other frameworks that match a search; nothing if no entry matches."""
    count = context.ask(queries.count, EntryFilter(text)) if text else 0
    if count:
        label = f"{counted(count, 'entry', 'entries')} of other frameworks"
        widgets.page_link("kernels", label, "inventory_2", view=OTHERS, words=text)

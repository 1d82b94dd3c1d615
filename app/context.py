"""The context of all pages: the cache, its jobs, and answers from the index."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from app.presenters.forms import missing_compilers as look_for_compilers
from app.presenters.shared import kernel_title
from cache_engine.batch.jobs import Jobs
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.demand import DemandReport
from cache_engine.errors import GemmCacheError, IndexUnavailable
from cache_engine.frameworks.bundles import Group
from cache_engine.index import queries, summaries
from cache_engine.insight.inspection import Inspected, Inspection, Stored, inspect, inspect_stored, sass_of
from cache_engine.insight.linked.kernel import linked_code
from cache_engine.insight.linked.marks import Linked
from cache_engine.model.artifact import Record
from cache_engine.usage.demand import Ledger

if TYPE_CHECKING:
    from cache_engine.index import Connection
    from cache_engine.index.sync import Index

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OLD_ANSWERS = "old answers"
_AHEAD = "answers that were asked ahead"
_MOST_ANSWERS = 64
_AT_ONCE = 4
STORE = "store"
"""The parameter of the address and the session that names the shown store, if that is not the first store."""


def cache() -> Cache:
    """The cache of the store that the reader has chosen; by default of the one that the dashboard was started on."""
    chosen = st.session_state.get(STORE)
    return _first() if chosen is None else cache_of(chosen)


def stores() -> dict[str, Path]:
    """All stores of this dashboard by name, the one that it was started on (``GEMM_CACHE_DIR``) first.

    A store is named by its folder; where several have that name, by its whole path.
    """
    first = _first()
    paths = list(dict.fromkeys((first.layout.root, *first.settings.stores)))
    names = [path.name for path in paths]
    return {path.name if names.count(path.name) == 1 else str(path): path for path in paths}


def cache_of(name: str) -> Cache:
    """The cache of one of ``stores``. A store that does not exist is not created.

    Raises:
        StoreError: when the store cannot be opened.
    """
    path = stores()[name]
    return _first() if path == _first().layout.root else _other(str(path))


def choose_store(asked: str | None) -> None:
    """Makes the pages show the store of this name, from the address or the list of stores; ignores unknown names."""
    known = list(stores())
    if asked in known:
        st.session_state[STORE] = asked
    if st.session_state.get(STORE) in (None, known[0]):
        st.session_state.pop(STORE, None)
        st.query_params.pop(STORE, None)
    elif st.query_params.get(STORE) != st.session_state[STORE]:
        st.query_params[STORE] = st.session_state[STORE]


def here(address: str) -> str:
    """An address within this dashboard, completed by the name of the shown store, so that it can open in a new tab."""
    chosen = st.session_state.get(STORE)
    if chosen is None or not address or "://" in address or f"{STORE}=" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}{urlencode({STORE: chosen})}"


@st.cache_resource(show_spinner=False)
def _first() -> Cache:
    return _opened(open_cache(enable_caching=True))  # it shows the store even where kernels do not use it


@st.cache_resource(show_spinner=False)
def _other(root: str) -> Cache:
    return _opened(open_cache(root, enable_caching=True, create=False))


def _opened(opened: Cache) -> Cache:
    opened.index.query_limit_s = opened.settings.page_limit_s
    opened.index.reads_often = True
    return opened


def jobs() -> Jobs:
    """The jobs of the store."""
    return _jobs(str(cache().layout.root))


@st.cache_resource(show_spinner=False)
def _jobs(root: str) -> Jobs:  # noqa: ARG001 (what it is of)
    return Jobs(cache().layout)


def ask(question: Callable[Concatenate[Connection, _P], _T], /, *arguments: _P.args, **options: _P.kwargs) -> _T:
    """The answer to one of ``index.queries`` or another module of queries, once the index is up to date.

    Answers are cached until the index changes, so drawing a page again costs no query. All readers get the same
    object, which no page may change. While the index is unavailable, the last answer is returned; ``age_of_answers``
    says how old it is.

    Raises:
        IndexUnavailable: when the index is unavailable and no earlier answer exists.
    """
    asked = _asked(question, arguments, options)
    answer: _T
    if _OLD_ANSWERS in st.session_state and asked in _last_answers():
        answer = _last_answers()[asked][0]  # one wait for each page is enough
        return answer
    ahead: dict[object, Any] = st.session_state.get(_AHEAD, {})
    try:
        if asked in ahead:
            answer = ahead.pop(asked)  # once: who asks again may have changed the store
        else:
            answer = _answer((generation(), *asked), partial(cache().index.query, question, *arguments, **options))
    except IndexUnavailable as error:
        if asked not in _last_answers():
            raise
        answer, answered_at = _last_answers()[asked]
        st.session_state[_OLD_ANSWERS] = (answered_at, str(error))
    else:
        if len(_last_answers()) >= _MOST_ANSWERS:
            _last_answers().clear()
        _last_answers()[asked] = (answer, time.time())
    return answer


Question = tuple[Callable[..., Any], tuple[object, ...], dict[str, object]]
"""A function of queries with its arguments and options, as ``ask`` takes them."""


def question(
    function: Callable[Concatenate[Connection, _P], Any], /, *arguments: _P.args, **options: _P.kwargs
) -> Question:
    """Packs a query and its arguments, as for ``ask``, for ``ask_ahead``; runs nothing."""
    return function, arguments, options


def ask_ahead(*questions: Question) -> None:
    """Asks several questions with one opening of the index, several at a time, in threads that have no session.

    A later call of ``ask`` with the same arguments finds the answer. A question that fails here is asked again by
    ``ask``, which then raises the error.
    """
    if _OLD_ANSWERS in st.session_state:
        return
    with suppress(IndexUnavailable):
        at = generation()
        found, missing = {}, {}
        for one in questions:
            asked = _asked(*one)
            try:
                found[asked] = _answer((at, *asked), _unanswered)
            except LookupError:
                missing[asked] = one
        if len(missing) > 1:
            index = cache().index
            # While it is read here, it is open for all of them.
            with index.read(), ThreadPoolExecutor(_AT_ONCE) as pool:
                answers = [pool.submit(_answer_of, one, index) for one in missing.values()]
                for asked, answer in zip(missing, answers, strict=True):
                    found[asked] = _answer((at, *asked), answer.result)
        st.session_state[_AHEAD] = found


def forget_ahead() -> None:
    """Forgets the unused answers to ``ask_ahead`` of a page's last drawing, as the store may have changed since."""
    st.session_state.pop(_AHEAD, None)


def titles(keys: Iterable[str]) -> dict[str, str]:
    """The titles of the kernels among ``keys`` that are stored, by key, for every list that names a kernel."""
    asked = sorted(filter(None, set(keys)))
    return {row["key"]: kernel_title(row) for row in ask(queries.named, asked)} if asked else {}


def generation() -> int:
    """A number that changes whenever the index has new data about the store; raises ``IndexUnavailable``."""
    return cache().index.sync().generation


def demand(
    connection: Connection, half_life_s: float, at: float, since: float | None, limit_s: float = math.inf
) -> tuple[Ledger, DemandReport]:
    """A question for ``ask``: all requests, and their shares by shape.

    Raises:
        SearchStopped: when the sums take longer than ``limit_s``.
    """
    until = time.monotonic() + limit_s
    ledger = summaries.ledger(connection, half_life_s, at, since)
    return ledger, cache().demand.report(ledger, may_go_on=lambda: time.monotonic() < until)


def store_is_gone() -> bool:
    """Whether the store was deleted or moved after this dashboard opened it; every page would then look empty."""
    return not os.path.exists(cache().layout.marker)


def command(*arguments: str) -> str:
    """A command of ``gemm-cache`` on this store, for a shell: without ``--store`` it would use another store."""
    return shlex.join(("gemm-cache", "--store", str(cache().layout.root), *arguments))


def age_of_answers() -> tuple[float, str] | None:
    """The time of a page's old answers, in seconds since 1970, and why none is newer; ``None`` if all are new."""
    old: tuple[float, str] | None = st.session_state.pop(_OLD_ANSWERS, None)
    return old


@st.cache_resource(show_spinner=False)
def _last_answers() -> dict[tuple[str, str, str, str], tuple[Any, float]]:
    return {}


def _asked(question: Callable[..., Any], arguments: object, options: object) -> tuple[str, str, str, str]:
    """Texts that identify a question: store, function and arguments, quicker to hash than the question itself.

    The function's text names its module, because two modules of queries may have functions of the same name.
    """
    name = f"{question.__module__}.{question.__qualname__}"
    return str(cache().layout.root), name, repr(arguments), repr(options)


def _answer_of(asked: Question, index: Index) -> Any:
    """The answer, read without ``Index.query``, which would rebuild a damaged index that other threads still read."""
    function, arguments, options = asked
    with index.read() as connection:
        return function(connection, *arguments, **options)


def _unanswered() -> NoReturn:
    raise LookupError


@st.cache_resource(show_spinner=False, max_entries=_MOST_ANSWERS)
def _answer(of: tuple[Any, ...], _make: Callable[[], Any]) -> Any:  # noqa: ARG001
    return _make()


@st.cache_data(show_spinner=False, ttl=60)
def missing_compilers() -> dict[str, str]:
    """Compilers that are not installed, and how to install them; checked again after a minute."""
    return look_for_compilers()


@st.cache_data(show_spinner="Disassembling…", max_entries=64)
def sass(key: str, digest: str) -> str:  # noqa: ARG001 (the digest distinguishes builds of one key)
    """Machine code of a kernel, ours or adapted, as text; disassembling takes half a second."""
    opened = cache()
    return sass_of(opened, opened.admin.find_stored(key))


@st.cache_data(show_spinner="Compiling with line tables…", max_entries=32)
def linked(key: str, digest: str) -> Linked:  # noqa: ARG001 (the digest distinguishes builds of one key)
    """The linked code of a kernel; compiling and disassembling take half a second to a few seconds."""
    opened = cache()
    return linked_code(opened, opened.find(key))


def inspection(record: Record) -> Inspection:
    """Inspects a kernel without running it; its instructions only if it can be disassembled here."""
    try:
        return inspect(record, sass(record.key, record.blob.digest))
    except GemmCacheError as error:
        return inspect(record, None, str(error))


def compared_with(kernel: Stored) -> tuple[Inspected, Callable[[], str]]:
    """The inspection of a kernel, ours or adapted, and a function that returns its machine code or raises an error."""
    state = f"{kernel.made_at}" if isinstance(kernel, Group) else kernel.blob.digest
    disassemble = partial(sass, kernel.key, state)
    return inspect_stored(kernel, disassemble), disassemble


def timezone() -> ZoneInfo:
    """The reader's time zone, as the browser reports it."""
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")

"""Long work of a page: it stops when it takes too long, and when the reader has left."""

from __future__ import annotations

import time

import streamlit as st

from app import context

_SIGN_S = 0.2
SMALLER_CHIP = "Choose a chip with fewer cores or larger cubes, or run gemm-cache evaluate, which has no limit."
FEWER_ROWS = "Give fewer measurements, or run gemm-cache calibrate --check all, which has no limit."
SHORTER_RANGE = "Choose a shorter time range, or run gemm-cache demand, which has no limit."


class SearchLimit:
    """The time limit of the searches in one drawing of a page. Created where the page shows that it is searching.

    Streamlit ends a script only where the script sends something to the browser. So a sign of life is sent now and
    then: at that point a search ends if its tab was closed, or if its reader asked for something else.
    """

    def __init__(self, sign: str = "Searching…") -> None:
        """Starts counting.

        Args:
            sign: what the page shows meanwhile.
        """
        self._sign = sign
        self._place = st.empty()
        self._until = time.monotonic() + context.cache().settings.page_limit_s
        self._next_sign = time.monotonic() + _SIGN_S

    def __enter__(self) -> SearchLimit:
        return self

    def __exit__(self, *_: object) -> None:
        self._place.empty()

    def may_go_on(self) -> bool:
        """Whether there is time left; called often. Does not return when the reader has left."""
        now = time.monotonic()
        if now >= self._next_sign:
            self._next_sign = now + _SIGN_S
            self._place.caption(self._sign)
        return now < self._until

    def what_next(self, how: str = SMALLER_CHIP) -> str:
        """Advice after a search stopped."""
        return advice(how)


def advice(how: str) -> str:
    """Advice after work of a page took longer than the settings allow."""
    return f"A page searches for at most {context.cache().settings.page_limit_s:g} s (setting page_limit_s). {how}"

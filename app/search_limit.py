"""Stops the long work of a page when it takes too long, and when the reader has left."""

from __future__ import annotations

import time

import streamlit as st

from app import context

_SIGN_S = 0.2
SMALLER_CHIP = "Choose a chip with fewer cores or larger cubes, or run gemm-cache evaluate, which has no limit."
FEWER_ROWS = "Give fewer measurements, or run gemm-cache calibrate --check all, which has no limit."
SHORTER_RANGE = "Choose a shorter time range, or run gemm-cache demand, which has no limit."


class SearchLimit:
    """The time limit of all searches in one drawing of a page. Creating it reserves the place of "Searching…".

    Streamlit ends a script only when the script sends something to the browser. So a text is sent from time to time: at
    that moment a search ends if its tab was closed, or if its reader asked for something else.
    """

    def __init__(self, sign: str = "Searching…") -> None:
        """Starts the time limit.

        Args:
            sign: the text that the page shows during a search.
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


def advice(how: str) -> str:
    """The advice that a page shows after its work took longer than the setting ``page_limit_s`` allows."""
    return f"A page searches for at most {context.cache().settings.page_limit_s:g} s (setting page_limit_s). {how}"

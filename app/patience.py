"""Long work of a page: ended when it takes too long, and when nobody waits for it any more."""

from __future__ import annotations

import time

import streamlit as st

from app import context

_SIGN_S = 0.2
SMALLER_CHIP = "Choose a chip with fewer cores or larger cubes, or run gemm-cache evaluate, which has no limit."
FEWER_ROWS = "Give fewer measurements, or run gemm-cache evaluations validate, which has no limit."


class Patience:
    """How long one drawing of a page may go on searching. Made where the page says meanwhile that it does.

    Streamlit ends a script only where it sends something to the browser. So a sign of life is sent now and then: there
    a search ends whose tab was closed, or whose reader has asked for something else.
    """

    def __init__(self, sign: str = "Searching…") -> None:
        """Starts counting.

        Args:
            sign: what the page says meanwhile.
        """
        self._sign = sign
        self.limit_s = context.cache().settings.page_limit_s
        self._place = st.empty()
        self._until = time.monotonic() + self.limit_s
        self._next_sign = time.monotonic() + _SIGN_S

    def __enter__(self) -> Patience:
        return self

    def __exit__(self, *_: object) -> None:
        self._place.empty()

    def may_go_on(self) -> bool:
        """Whether there is time left; to be asked often. Does not return when nobody waits any more."""
        now = time.monotonic()
        if now >= self._next_sign:
            self._next_sign = now + _SIGN_S
            self._place.caption(self._sign)
        return now < self._until

    def what_next(self, advice: str = SMALLER_CHIP) -> str:
        """What a reader can do whose search was stopped."""
        return f"A page may search for {self.limit_s:g} s (setting page_limit_s). {advice}"

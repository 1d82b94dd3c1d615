"""Permission to delete and import. Only this module asks Streamlit for the facts; ``admission`` decides.

Pages draw ``door`` once, and delete and import only through ``act``, which asks for permission again at that moment:
the drawn page may be old, or the request may come from a program that draws nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import streamlit as st

from app import context, widgets
from cache_engine.errors import GemmCacheError, NotPermitted
from cache_engine.upkeep import admission

_PROVED = "gave the admin token"
_REFUSED = "why a token was refused"
_Result = TypeVar("_Result")


def request() -> admission.Request:
    """The facts about the reader's request on which the permission depends."""
    headers = {str(name).lower(): str(value) for name, value in st.context.headers.items()}
    return admission.Request(str(st.get_option("server.address") or ""), st.context.ip_address or "", headers)


def visitor() -> admission.Visitor:
    """The name of the reader, as far as known. An e-mail address that the login has not verified is not used."""
    user = st.user
    name = ""
    if user.get("is_logged_in"):
        vouched = user.get("email") if user.get("email_verified") is not False else ""
        name = str(vouched or user.get("sub") or "a user without a name")
    return admission.Visitor("is_logged_in" in user, name, st.session_state.get(_PROVED, False))


def may() -> admission.Permission:
    """Whether the reader may delete and import now."""
    settings = context.cache().settings
    return admission.permission(
        request(),
        visitor(),
        token=settings.admin_token is not None,
        users=settings.admin_users,
        read_only=settings.dashboard_read_only,
    )


def act(trouble: str, do: Callable[[str], _Result]) -> _Result | None:
    """Calls ``do`` with the reader's name, if permitted now; returns its result or, after showing the error, ``None``.

    The name is for the audit log.
    """
    try:
        given = may()
        if not given.granted:
            raise NotPermitted(f"not allowed: {given.why_not}")
        return do(given.by)
    except (GemmCacheError, OSError) as error:
        widgets.problem(trouble, str(error))
        return None


def may_write() -> None:
    """Checks that readers may add to the store, as all may; raises ``NotPermitted`` in a read-only dashboard."""
    if context.cache().settings.dashboard_read_only:
        raise NotPermitted(f"not allowed: {admission.READ_ONLY}")


def door() -> bool:
    """Shows whether the reader may delete and import, and how to get permission; returns whether the reader may."""
    given = may()
    who = visitor()
    if given.granted:
        if who.proved or who.user:
            _draw_way_out(given, who)
        return True
    with st.container(border=True):
        st.info("Read-only access: you cannot delete, repair or import.", icon=":material/lock:")
        st.text(f"Why: {given.why_not}.")
        if admission.TOKEN in given.asks_for:
            _draw_token_form()
        if admission.LOGIN in given.asks_for:
            _draw_login()
        if who.user and st.button("Log out", icon=":material/logout:"):
            st.logout()
        if given.why_not == admission.READ_ONLY:
            st.caption("To change something, use the command line, or a dashboard without --read-only.")
        elif not given.asks_for and not who.user:
            st.caption(
                "To permit it, set GEMM_CACHE_ADMIN_TOKEN or set up a login before you start the dashboard, or run the "
                "dashboard on localhost only. See “Who may do what” in the dashboard documentation."
            )
    return False


def _draw_token_form() -> None:
    with st.form("admin-token", clear_on_submit=True, border=False):
        left, right = st.columns([3, 1], vertical_alignment="bottom")
        given = left.text_input("Admin token", type="password", max_chars=500, autocomplete="off")
        if right.form_submit_button("Unlock", icon=":material/lock_open:"):
            _try(given or "")
    if _REFUSED in st.session_state:
        st.error(st.session_state.pop(_REFUSED), icon=":material/block:")


def _try(given: str) -> None:
    token = context.cache().settings.admin_token
    if token is not None and admission.fits(token, given):
        st.session_state[_PROVED] = True
    else:
        with st.spinner("Checking…"):
            time.sleep(_attempts().wrong(request().peer, time.monotonic()))  # this tab's next attempt waits as long
        st.session_state[_REFUSED] = "Wrong token."
    st.rerun()


def _draw_login() -> None:
    providers: list[str | None] = [*_providers()]
    for provider in providers or [None]:
        label = "Log in" if provider is None else f"Log in with {provider}"
        if st.button(label, icon=":material/login:", key=f"login-{provider}"):
            try:
                st.login(provider)
            except Exception as error:  # the reader needs to see what is wrong with the configuration
                widgets.problem("Login failed.", str(error))


def _providers() -> list[str]:
    """The names of the login's providers, where they have names."""
    try:
        return [str(name) for name, value in st.secrets["auth"].items() if isinstance(value, Mapping)]
    except (FileNotFoundError, KeyError):  # the login is not from secrets
        return []


def _draw_way_out(given: admission.Permission, who: admission.Visitor) -> None:
    left, right = st.columns([4, 1], vertical_alignment="center")
    left.text(f"Unlocked: {given.by}.")
    if right.button("Lock", icon=":material/lock:", help="Give up admin access."):
        st.session_state.pop(_PROVED, None)
        if who.user and not who.proved:
            st.logout()
        st.rerun()


@st.cache_resource(show_spinner=False)
def _attempts() -> admission.Attempts:
    """The delays after wrong tokens, which all readers and tabs share."""
    return admission.Attempts()

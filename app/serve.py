"""Runs Streamlit behind a gate, and without the one request that it would send to the internet.

When a page of another origin asks for data, Streamlit 1.67 looks up this machine's external address at a public
service, to decide whether that origin is the dashboard itself. ``gate`` refuses such pages before that; if a later
version looks the address up in another case, ``no_address`` still returns ``None``.

Started as ``serve.py OPTIONS``, a JSON object of Streamlit's options.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import streamlit as st
from streamlit import config, env_util, file_util, net_util
from streamlit.cli_util import open_browser
from streamlit.commands import page_config
from streamlit.elements.widgets.number_input import NumberInputSerde
from streamlit.runtime import memory_uploaded_file_manager
from streamlit.web.server import server_util

from app.server.compression import Compressed
from app.server.gate import Application, Gate, Message, Receive, Send
from app.server.imports import import_pages
from app.server.style import Styled, style_sheet
from app.server.uploads import Bounded, UploadedFiles


def no_address() -> None:
    """Answers the lookup of this machine's public address with ``None``, so that nothing is asked of the network."""


net_util.get_external_ip = no_address
net_util.get_internal_ip = no_address  # sends no request, but an address that is not served is no origin of ours either


def is_no_repl() -> bool:
    """Tells Streamlit that this is no interactive session; finding out would take 50 ms of the first page."""
    return False


def as_given(page_icon: object) -> str:
    """Returns our icon, a data URL, unchanged; Streamlit would import numpy and PIL, in 0.1 s, to check it."""
    return str(page_icon)


_number_of = NumberInputSerde.deserialize


def finite(self: NumberInputSerde, ui_value: float | None) -> float | None:
    """The value of a number field; infinity, as from 1e999 in an address, would make Streamlit fail and is left out."""
    return _number_of(self, None if ui_value is not None and math.isinf(ui_value) else ui_value)


env_util.is_repl = is_no_repl
page_config._get_favicon_string = as_given  # noqa: SLF001
NumberInputSerde.deserialize = finite  # type: ignore[method-assign]
memory_uploaded_file_manager.MemoryUploadedFileManager = UploadedFiles  # type: ignore[misc]


class Dashboard(st.App):
    """The dashboard: every request goes through the gate, also those that Streamlit answers with an error."""

    _gate: Application | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request or connection."""
        if self._gate is None:
            self.shell = Path(file_util.get_static_dir(), "index.html").read_text(encoding="utf-8")
            self.files = Compressed(Styled(super().__call__, style_sheet()))
            self._gate = Gate(Bounded(self.files), config.get_option("server.allowedHosts"), self.shell)
        await self._gate(scope, receive, send)


@asynccontextmanager
async def _opening(app: st.App) -> AsyncIterator[None]:
    """Reads the files that every page needs, and opens a browser if the user wants that; the server listens already."""
    if isinstance(app, Dashboard):
        await app.files.remember(app.shell)
    Thread(target=import_pages, name="imports", daemon=True).start()
    if not config.get_option("server.headless"):
        open_browser(server_util.get_url(server_util.get_display_address(config.get_option("server.address"))))
    yield


def _end(*_: Any) -> None:
    """Ends the process in the normal way, so that functions registered to run at its end are called."""
    sys.exit(0)


if __name__ == "__main__":
    options = json.loads(sys.argv.pop())
    # Once the server has shut down it sends itself the signal that ended it.
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    Dashboard(Path(__file__).with_name("main.py"), lifespan=_opening).run(config=options)

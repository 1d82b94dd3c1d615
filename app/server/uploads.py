"""Limits the bytes of all uploaded files together.

Streamlit 1.67 limits only the size of one file, and keeps each file in memory while its tab is open. It also fails in
every run of a page after an upload of a file with a NUL in its name, which no browser sends.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

from app.server.gate import Application, Message, Receive, Send, refuse
from cache_engine.units import human_bytes, printable

MOST_OF_TAB = 128 * 2**20
"""The most bytes of uploaded files that one tab may have: two of the largest files."""
MOST_OF_ALL = 4 * MOST_OF_TAB
"""The most bytes of uploaded files that all tabs together may have."""
_PLACE = "/_stcore/upload_file/"


class UploadedFiles(MemoryUploadedFileManager):
    """Streamlit's store of uploaded files, under names that every page can show."""

    def add_file(self, session_id: str, file: UploadedFileRec) -> None:
        """Stores a file."""
        super().add_file(session_id, file._replace(name=printable(file.name)))

    def sizes(self) -> Counter[str]:
        """The bytes of each tab's uploaded files, by the tab's session."""
        with self._lock:
            return Counter(
                {tab: sum(len(one.data) for one in some.values()) for tab, some in self.file_storage.items()}
            )


class Bounded:
    """An ASGI application in front of another: refuses, before reading it, an upload that exceeds a limit."""

    def __init__(self, inner: Application) -> None:
        """Stores the application; no upload is in progress yet."""
        self._inner = inner
        self._coming: Counter[str] = Counter()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request or connection."""
        if scope["type"] != "http" or scope["method"] != "PUT" or not scope["path"].startswith(_PLACE):
            await self._inner(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if b"transfer-encoding" in headers:
            await refuse(scope, send, 411, "The dashboard takes a file only with its length: send Content-Length.\n")
            return
        tab = scope["path"].removeprefix(_PLACE).partition("/")[0]
        size_bytes = int(headers.get(b"content-length", b"0"))  # the server has read it
        sizes = cast("UploadedFiles", runtime.get_instance().uploaded_file_mgr).sizes() + self._coming
        if sizes[tab] + size_bytes > MOST_OF_TAB or sizes.total() + size_bytes > MOST_OF_ALL:
            await refuse(scope, send, 413, _TOO_MUCH)
            return
        self._coming[tab] += size_bytes
        try:
            await self._inner(scope, receive, send)
        finally:
            self._coming[tab] -= size_bytes
            self._coming += Counter()  # only tabs that send


_TOO_MUCH = (
    f"A tab of the dashboard may have {human_bytes(MOST_OF_TAB)} of uploaded files, all tabs together "
    f"{human_bytes(MOST_OF_ALL)}. Remove a file, or close a tab, and upload again.\n"
)

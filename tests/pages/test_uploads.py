"""How much may be uploaded, by plain calls of the application in front of Streamlit."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from streamlit import runtime
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

from app.server import uploads
from app.server.gate import Message, Receive, Send


class Server:
    """Streamlit's, as far as it stores files: those that hang are never read to their end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files, self.front = uploads.UploadedFiles("/_stcore/upload_file"), uploads.Bounded(self._store)
        self.goes_on = asyncio.Event()
        monkeypatch.setattr(runtime, "get_instance", lambda: SimpleNamespace(uploaded_file_mgr=self.files))
        monkeypatch.setattr(uploads, "MOST_OF_TAB", 100)
        monkeypatch.setattr(uploads, "MOST_OF_ALL", 150)

    async def _store(self, scope: Message, receive: Receive, send: Send) -> None:
        _, tab, name = scope["path"].rsplit("/", 2)
        if name == "hangs":
            await self.goes_on.wait()
        if scope["method"] == "PUT":
            self.files.add_file(tab, UploadedFileRec(name, name, "", b"x" * 60))
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def put(self, path: str, size: int | None = 60, method: str = "PUT") -> int:
        """The status of the answer."""
        answers: list[Message] = []

        async def send(message: Message) -> None:
            answers.append(message)

        header = (b"transfer-encoding", b"chunked") if size is None else (b"Content-Length", str(size).encode())
        scope = {"type": "http", "method": method, "path": f"/_stcore/upload_file/{path}", "headers": [header]}
        await self.front(scope, lambda: asyncio.sleep(0, {}), send)
        return int(answers[0]["status"])


def test_a_tab_and_all_tabs_have_a_bound_and_what_is_removed_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)

    async def use() -> list[int]:
        return [
            await server.put("a/1"),
            await server.put("a/2"),  # 120 of 100
            await server.put("a/2", 40),
            await server.put("b/1", 60),  # with the 60 + 60 that are there: 180 of 150
            await server.put("a/1", method="DELETE"),
            await server.put("b/1", None),
        ]

    assert asyncio.run(use()) == [204, 413, 204, 413, 204, 411]
    server.files.remove_session_files("a")
    assert asyncio.run(server.put("b/1")) == 204


def test_what_is_under_way_counts_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)

    async def use() -> tuple[int, int, int]:
        hangs = asyncio.create_task(server.put("a/hangs"))
        await asyncio.sleep(0)
        refused = await server.put("a/2", 60)
        hangs.cancel()
        await asyncio.gather(hangs, return_exceptions=True)
        return refused, await server.put("a/2", 60), len(server.front._coming)

    assert asyncio.run(use()) == (413, 204, 0)


def test_a_name_is_stored_as_pages_can_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    files = uploads.UploadedFiles("")
    files.add_file("a", UploadedFileRec("1", "a\0b\x1b[31m\u202e.csv", "", b""))
    (file,) = files.get_files("a", ["1"])
    assert file.name == "a?b?[31m?.csv"

"""What is fuzzed of reports: what ``replay --json`` printed."""

from __future__ import annotations

from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from benchmarks.replay.documents import EvictionRow, Replayed, ReplayedStore, ReplayRow
from benchmarks.replay.replay_results import LARGEST_DOCUMENT, replay_report
from cache_engine.errors import UsageError
from cache_engine.insight.report.page import written

_DRAWN_OF_A_BYTE = 200
_TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "div", "section", "table", "thead", "tbody",
    "tr", "th", "td", "figure", "figcaption", "p", "pre", "footer", "svg", "rect", "text", "g", "circle", "polyline",
}  # fmt: skip


class _Tags(HTMLParser):
    """Fails on an element that no report has: text of the document that is not escaped."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS, tag
        assert not any(name.startswith("on") or name in ("href", "src") for name, _ in attrs), attrs


def seeds(_: Path) -> list[bytes]:
    """One of each kind of replay, by the types of their fields."""
    rows = [_filled(ReplayRow, load=load, policy=policy) for load in (0.5, 2.0) for policy in ("wait", "exact<b>")]
    orders = [_filled(EvictionRow, order=order, size_bytes=size) for order in ("value", "lru") for size in (10, 20)]
    return [
        msgspec.json.encode(_filled(Replayed, rows=rows, left_out=["lm_head: <script>"])),
        msgspec.json.encode(_filled(ReplayedStore, rows=orders)),
    ]


def _filled(kind: type[msgspec.Struct], **given: object) -> msgspec.Struct:
    values = {"str": "some", "int": 3, "float": 2.5, "float | None": None}
    return kind(**{name: given.get(name, values.get(str(of))) for name, of in kind.__annotations__.items()})


def read(data: bytes, folder: Path) -> None:
    """Writes the report, which holds no element but its own."""
    path = folder / "replay.json"
    path.write_bytes(data[:LARGEST_DOCUMENT])
    with suppress(UsageError):
        text = written(replay_report(path), 1.7e9)
        assert len(text) < 20_000 + _DRAWN_OF_A_BYTE * len(data)
        parser = _Tags()
        parser.feed(text)
        parser.close()

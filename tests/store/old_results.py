"""Logs of results, as version 0.2 wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from cache_engine.store.layout import StoreLayout


def line(text: bytes) -> bytes:
    """A line of a log, with its checksum."""
    return b"\n%b %b\n" % (xxh3_64_hexdigest(text).encode(), text)


def write_log(layout: StoreLayout, fingerprint: str, entries: Mapping[str, bytes], number: int = 1000) -> Path:
    """A log of these entries, by key, that is not merged yet."""
    path = layout.results_log(fingerprint, number)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(line(b"%b 1e9 0.5 %b" % (key.encode(), entry)) for key, entry in entries.items()))
    return path


def into_a_log(layout: StoreLayout, fingerprint: str) -> Path:
    """Moves the last result of a file into a log; returns its path."""
    path = layout.results_file(fingerprint)
    stored = json.loads(path.read_bytes())
    key, entry = stored["cache_entries"].popitem()
    path.write_text(json.dumps(stored, separators=(",", ":")))
    return write_log(layout, fingerprint, {key: json.dumps(entry, separators=(",", ":")).encode()})

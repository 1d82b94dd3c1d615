"""The documents of kernels that other frameworks have in the store, in ``ls`` and ``show``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents import filled
from cache_engine.frameworks.groups import config_text

if TYPE_CHECKING:
    from cache_engine.frameworks.groups import Group
    from cache_engine.frameworks.values import Entry
    from cache_engine.model.events import EntryUsage


class AdaptedRow(msgspec.Struct, kw_only=True):
    """A kernel of another framework in a list; times are seconds since 1970. ``None`` is what is not known."""

    key: str
    framework: str
    name: str
    version: str | None
    compiler: str | None
    arch: str | None
    registers: int | None
    shared_bytes: int | None
    stack_bytes: int | None
    code_bytes: int | None
    size_bytes: int
    stored_bytes: int
    compile_ms: float | None
    created_at: float
    config: str
    hits: int
    last_used_at: float


class AdaptedList(msgspec.Struct, kw_only=True):
    """One page of ``total`` kernels of other frameworks."""

    total: int
    rows: list[AdaptedRow]


class AdaptedPart(msgspec.Struct, kw_only=True):
    """One file of a kernel of another framework."""

    name: str
    kind: str
    size_bytes: int


class AdaptedShown(AdaptedRow, kw_only=True):
    """What ``show`` prints of a kernel of another framework that the store has.

    Attributes:
        unknown: of facts that are not known the reason.
    """

    spill_bytes: int | None
    stages_ms: dict[str, float]
    pinned: bool
    parts: list[AdaptedPart]
    unknown: dict[str, str]


def adapted_shown(
    group: Group, known: Entry, usage: EntryUsage | None, stored_bytes: int, *, is_pinned: bool
) -> AdaptedShown:
    """The document of an adapted kernel, from its files, what is known of them, and how it was used."""
    return filled(
        AdaptedShown,
        known,
        group,
        name=known.name or "",
        stored_bytes=stored_bytes,
        created_at=group.made_at,
        config=config_text(known),
        hits=sum(usage.hits.values()) if usage else 0,
        last_used_at=max(group.made_at, usage.last_used_at if usage else 0.0),
        pinned=is_pinned,
        parts=[filled(AdaptedPart, part) for part in known.parts],
        unknown=dict(known.unread),
    )

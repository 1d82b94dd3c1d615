"""Explains a command of nvcc's launcher: a hit, or a miss and the header, option, variable or file that caused it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cache_engine.adapters.nvcc import compiler_in
from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.frameworks.bundles import UnknownGroup, group_keys, read_group
from cache_engine.frameworks.nvcc.command import PassThrough, understood
from cache_engine.frameworks.nvcc.inputs import Digests
from cache_engine.frameworks.nvcc.results import FRAMEWORK, Lookup, Request, differences, document_of
from cache_engine.store.layout import StoreLayout


@dataclass(frozen=True, slots=True)
class LaunchExplained:
    """The result that a command would have if it were run now.

    Attributes:
        result: ``hit``, ``miss`` or ``passes through``.
        key: the key of a stored result: on a hit, of the result served; on a miss, of the nearest to the command.
        reasons: why the command is not a hit, in words.
    """

    result: str
    key: str
    reasons: tuple[str, ...]


def explain_launch(layout: StoreLayout, words: Sequence[str]) -> LaunchExplained:
    """Explains a command of nvcc without running it or counting a use; raises ``UsageError`` if nvcc is missing."""
    compiler, arguments = compiler_in(words, os.environ)
    if not compiler:
        raise UsageError("nvcc is not installed; name it first, set CUDA_HOME or add it to PATH")
    try:
        request = Request(understood(compiler, arguments, os.environ), Digests(layout))
        lookup = Lookup(layout, request)
    except PassThrough as reason:
        return LaunchExplained("passes through", "", (str(reason),))
    if lookup.found is not None:
        return LaunchExplained("hit", lookup.found[0].key, ())
    if lookup.reasons:
        return LaunchExplained("miss", "", tuple(lookup.reasons))
    key, reasons = _nearest(layout, request)
    return LaunchExplained("miss", key, tuple(reasons))


def _nearest(layout: StoreLayout, request: Request) -> tuple[str, list[str]]:
    """The key of the stored result with the fewest differences from the request, and the differences."""
    nearest: tuple[str, list[str]] | None = None
    source = os.path.basename(request.command.source)
    for key in group_keys(layout):
        with suppress(CorruptEntry, UnknownGroup, OSError):
            group = read_group(layout, key, trust=True)
            if group is not None and group.framework == FRAMEWORK:
                document = document_of(group)
                found = differences(document, request)
                if document.source_name != source:
                    found.append(f"the stored one is of {document.source_name}")
                if nearest is None or len(found) < len(nearest[1]):
                    nearest = key, found
    return nearest or ("", ["no result of nvcc is stored"])

"""Completion in a shell: targets, models, types of elements, compilers, families, and keys of the store.

Completing opens and creates no store, reads no file of a store, and never fails: without an answer it offers nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import click
from click.shell_completion import CompletionItem

from cache_engine.cli.support.global_options import settings_of
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm.fields import FIELDS
from cache_engine.store.layout import StoreLayout, key_of_record_name, original_of_quarantined


class Completer(Protocol):
    """A function that offers a shell the values of a parameter."""

    def __call__(self, ctx: click.Context, incomplete: str, parameter: click.Parameter) -> list[CompletionItem]:
        """The completions of the text typed so far."""


_DIGITS = 12  # of a key, as ls prints it
_MOST_KEYS = 200  # of more, only the first two digits are offered


def _completer(offer: Callable[[click.Context, str], Iterable[str]]) -> Completer:
    """Makes a completer from a function that lists names.

    The completer offers the names that begin with the text typed. If the function fails, it offers nothing.
    """

    def complete(ctx: click.Context, incomplete: str, parameter: click.Parameter) -> list[CompletionItem]:  # noqa: ARG001
        try:
            return [
                CompletionItem(name) for name in offer(ctx, incomplete) if name.lower().startswith(incomplete.lower())
            ]
        except Exception:  # whatever it is, a traceback does not belong into a command line that is being typed
            return []

    return complete


def _one_of(*names: str) -> Completer:
    return _completer(lambda _, __: names)


def models(ctx: click.Context, incomplete: str, parameter: click.Parameter) -> list[CompletionItem]:
    """Completes names of models; if no model begins with the text typed, names of files."""
    return _models(ctx, incomplete, parameter) or [CompletionItem(incomplete, type="file")]


@_completer
def _models(ctx: click.Context, typed: str) -> Iterable[str]:  # noqa: ARG001
    from cache_engine.evaluator.catalogue import model_shapes

    return dict.fromkeys(shape.model for shape in model_shapes())


@_completer
def keys(ctx: click.Context, typed: str) -> Iterable[str]:
    """Completes keys of the store: their first 12 digits, or fewer where there are too many."""
    metadata = StoreLayout(settings_of(ctx).directory()).metadata
    shards = sorted(shard for shard in os.listdir(metadata) if shard.startswith(typed[:2]) and len(shard) == 2)
    found: list[str] = []
    for shard in shards:
        found += (key[: max(_DIGITS, len(typed))] for key in _keys_in(f"{metadata}/{shard}", shard, typed))
        if len(found) > _MOST_KEYS and len(shards) > 1:
            return shards
    return sorted(set(found))


def _keys_in(folder: str, shard: str, typed: str) -> Iterator[str]:
    for name in os.listdir(folder):
        key = key_of_record_name(name, shard)
        if key is not None and key.startswith(typed):
            yield key


@_completer
def quarantined(ctx: click.Context, typed: str) -> Iterable[str]:  # noqa: ARG001
    """Completes the names of items in quarantine."""
    folder = StoreLayout(settings_of(ctx).directory()).quarantine
    return sorted(name for name in os.listdir(folder) if original_of_quarantined(name)[1] is not None)


@_completer
def _compilers(ctx: click.Context, typed: str) -> Iterable[str]:  # noqa: ARG001
    from cache_engine.compilers import COMPILERS

    return COMPILERS


@_completer
def _families(ctx: click.Context, typed: str) -> Iterable[str]:  # noqa: ARG001
    from cache_engine.kernels.select import FAMILIES

    return FAMILIES


COMPLETERS: dict[str, Completer] = {
    "arch": _one_of(*ARCHITECTURES),
    "archs": _one_of(*ARCHITECTURES),
    **{field.name: _one_of(*field.choices) for field in FIELDS if field.choices},
    "compiler": _compilers,
    "family": _families,
    "table": models,
    "key": keys,
}
"""The completer of each parameter, by the parameter's name; a name has the same completer in all verbs."""

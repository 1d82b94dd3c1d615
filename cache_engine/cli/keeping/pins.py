"""The verbs that protect kernels from eviction: ``pin`` and ``unpin``."""

from __future__ import annotations

import click

from cache_engine.cli.documents.decisions import Pins
from cache_engine.cli.support import Verb, emit, json_option, open_cache
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted


@click.command(
    "pin",
    cls=Verb,
    examples=("pin 3f2a", "pin 3f2a 91bc", "pin"),
    done="The kernels are pinned; without KEY, those that are pinned are listed.",
    failed="No kernel has such a key prefix, several have it, or very many kernels are pinned.",
)
@click.argument("key", nargs=-1)
@json_option
@click.pass_obj
def pin_verb(settings: Settings, /, key: tuple[str, ...], as_json: bool) -> None:
    """Protect kernels from eviction.

    KEY: a prefix is enough. No limit, age or clean --all evicts a pinned kernel; clean --pinned does. A pin is of a
    key: it stays if the kernel is damaged or deleted, until unpin. Without KEY, lists the pinned keys.
    """
    with open_cache(settings, create=False) as cache:
        document = Pins(changed=list(cache.admin.pin(*key)), pinned=list(cache.admin.pinned()))
    emit(document, as_json, lambda: _print_pins(document, "Pinned" if key else ""))


@click.command(
    "unpin",
    cls=Verb,
    examples=("unpin 3f2a", "unpin --all"),
    done="The kernels are no longer pinned.",
    failed="No pinned kernel has such a key prefix, or several have it.",
)
@click.argument("key", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Unpin all kernels.")
@json_option
@click.pass_obj
def unpin_verb(settings: Settings, /, key: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """End the protection of pinned kernels.

    KEY: a prefix is enough.
    """
    if bool(key) == everything:
        raise UsageError("give the keys of the kernels to unpin, or --all; gemm-cache pin lists those that are pinned")
    with open_cache(settings, create=False) as cache:
        document = Pins(
            changed=list(cache.admin.unpin(*(cache.admin.pinned() if everything else key))),
            pinned=list(cache.admin.pinned()),
        )
    emit(document, as_json, lambda: _print_pins(document, "Unpinned"))


def _print_pins(d: Pins, done: str) -> None:
    for key in d.changed if done else d.pinned:
        print(f"{done} {key}".strip())
    if not done or not d.changed:
        print(f"{counted(len(d.pinned), 'kernel')} pinned.")

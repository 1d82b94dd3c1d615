"""The verb ``pin``: protects kernels from eviction, and ends the protection."""

from __future__ import annotations

import click

from cache_engine.cli.support import Verb, emit, json_option, open_cache
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted


@click.command(
    "pin",
    cls=Verb,
    examples=("pin", "pin 3f2a 91bc", "pin --remove 3f2a", "pin --remove --all"),
    done="The kernels are pinned, or no longer; without KEY, those that are pinned are listed.",
    failed="No kernel has such a key prefix, several have it, or very many kernels are pinned.",
)
@click.argument("key", nargs=-1)
@click.option("--remove", is_flag=True, help="End the protection of these kernels.")
@click.option("--all", "everything", is_flag=True, help="--remove: of all kernels.")
@json_option
@click.pass_obj
def pin_verb(settings: Settings, /, key: tuple[str, ...], remove: bool, everything: bool, as_json: bool) -> None:
    """Protect kernels from eviction.

    No limit, age or clean --all evicts a pinned kernel; clean --pinned does. A pin belongs to a key: it outlives a
    damaged or deleted kernel, until pin --remove. Without KEY, lists the pinned keys.
    """
    if everything and not remove:
        raise UsageError("--all goes with --remove; give the keys of the kernels to pin")
    if remove and bool(key) == everything:
        raise UsageError("give the keys of the kernels to unpin, or --all; gemm-cache pin lists those that are pinned")
    with open_cache(settings, create=False) as cache:
        admin = cache.admin
        keys = admin.unpin(*(admin.pinned() if everything else key)) if remove else admin.pin(*key)
        changed, pinned = [*map(str, keys)], [*map(str, admin.pinned())]
    done = "Unpinned" if remove else "Pinned" if key else ""
    emit({"changed": changed, "pinned": pinned}, as_json, lambda: _print_pins(changed, pinned, done))


def _print_pins(changed: list[str], pinned: list[str], done: str) -> None:
    for key in changed if done else pinned:
        print(f"{done} {key}".strip())
    if not done or not changed:
        print(f"{counted(len(pinned), 'kernel')} pinned.")

"""The verb ``pin``: protects kernels from eviction, and ends the protection; writes notes and tags."""

from __future__ import annotations

import click

from cache_engine.cli.support import Verb, emit, json_option, open_cache
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted


@click.command(
    "pin",
    cls=Verb,
    examples=(
        "pin",
        "pin 3f2a 91bc",
        "pin --remove 3f2a",
        "pin --remove --all",
        "pin 3f2a --tag prod --note 'slow on B200'",
    ),
    done="The kernels are pinned, or no longer, or have the note and the tags; without KEY, pinned kernels are listed.",
    failed="No kernel has such a key prefix, several have it, or very many kernels are pinned or noted.",
)
@click.argument("key", nargs=-1)
@click.option("--remove", is_flag=True, help="End the protection of these kernels.")
@click.option("--all", "everything", is_flag=True, help="--remove: of all kernels.")
@click.option("--note", metavar="TEXT", help="Pin nothing: give these kernels this note; '' deletes it.")
@click.option("--tag", multiple=True, help="Pin nothing: give these kernels this tag, or --remove it (repeatable).")
@json_option
@click.pass_obj
def pin_verb(
    settings: Settings, /, key: tuple[str, ...], remove: bool, everything: bool, note: str | None,
    tag: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Protect kernels from eviction.

    No limit, age or clean --all evicts a pinned kernel; clean --pinned does. A pin belongs to a key: it stays when
    the kernel is damaged or deleted, until pin --remove. Without KEY, lists the pinned keys.

    --note and --tag pin nothing: they change the note and tags of kernels. The verb show and the dashboard print
    both; ls tag=NAME and ls note=*TEXT* search them. No cleaning deletes them.
    """
    if everything and not remove:
        raise UsageError("--all goes with --remove; give the keys of the kernels to pin")
    if noting := note is not None or bool(tag):
        if not key or everything:
            raise UsageError("give the keys of the kernels that get the note or the tag")
        if remove and note is not None:
            raise UsageError("--remove goes with --tag; --note '' deletes a note")
    elif remove and bool(key) == everything:
        raise UsageError("give the keys of the kernels to unpin, or --all; gemm-cache pin lists those that are pinned")
    with open_cache(settings, create=False) as cache:
        admin = cache.admin
        if noting:
            keys = admin.annotate(*key, text=note, add=() if remove else tag, remove=tag if remove else ())
        else:
            keys = admin.unpin(*(admin.pinned() if everything else key)) if remove else admin.pin(*key)
        changed, pinned = [*map(str, keys)], [*map(str, admin.pinned())]
    done = "Noted" if noting else "Unpinned" if remove else "Pinned" if key else ""
    emit({"changed": changed, "pinned": pinned}, as_json, lambda: _print_pins(changed, pinned, done))


def _print_pins(changed: list[str], pinned: list[str], done: str) -> None:
    for key in changed if done else pinned:
        print(f"{done} {key}".strip())
    if not done or not changed:
        print(f"{counted(len(pinned), 'kernel')} pinned.")

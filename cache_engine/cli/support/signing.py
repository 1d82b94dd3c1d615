"""Reading the private key of ``--sign``, and printing the kernels that a verb refused or left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli.support import named
from cache_engine.units import counted, printable

if TYPE_CHECKING:
    from cache_engine.store.signatures.signers import SigningKey
    from cache_engine.upkeep.packs import Refused


def signing_key(path: Path) -> SigningKey:
    """Reads the key that ``--sign`` names; asks for its passphrase on a terminal. Raises as ``SigningKey.read``."""
    from cache_engine.store.signatures.signers import SigningKey

    def ask() -> str:
        return str(click.prompt(f"Passphrase of {path}", hide_input=True, err=True))

    with named(path):
        return SigningKey.read(path, ask if sys.stdin.isatty() else None)


def print_refused(refused: Sequence[Refused], fate: str) -> None:
    """Prints each refused kernel and the reason on standard error. ``fate`` says what was done, such as "left out"."""
    for entry in refused:
        print(printable(f"{fate}: {entry.key[:12]}: {entry.cause}"), file=sys.stderr)


def print_unknown(entries: int) -> None:
    """Prints on standard error how many entries were left out, because only another version reads them."""
    if entries:
        print(f"left out: {counted(entries, 'entry', 'entries')} of another format version", file=sys.stderr)

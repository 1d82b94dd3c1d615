"""Verbs that have left the program: for one version they say in one sentence where to go."""

from __future__ import annotations

import click

from cache_engine.errors import UsageError

BENCHMARKS = "what measures or simulates is no longer installed; in a checkout of the source, run: python -m benchmarks"


def _moved(name: str) -> click.Command:
    # Whatever was given after the name, --help included: the sentence is the answer.
    @click.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )
    @click.argument("given", nargs=-1, type=click.UNPROCESSED)
    def verb(given: tuple[str, ...]) -> None:
        if name == "bench" and given[:1] == ("fleet",):
            raise UsageError("bench fleet is gone; docs/scale.md has what it found")
        where = f" {name}" if name == "replay" else ""
        raise UsageError(f"{BENCHMARKS}{where}")

    return verb


bench_verb, replay_verb = _moved("bench"), _moved("replay")

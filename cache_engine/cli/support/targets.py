"""The option ``--arch``: targets by name, or chips, such as H100."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from cache_engine.cli.support.verb import UNTARGETED

_F = TypeVar("_F", bound=Callable[..., Any])
_DEFAULT = (
    "Default: the local GPU, else the setting default_arch (sm_90). An H100 or H200 looks up sm_90a: name it when you "
    "compile for one elsewhere."
)


def target_option(verb: _F) -> _F:
    """Gives a verb ``--arch``: the one target that it compiles for."""
    return click.option(
        "--arch",
        metavar="ARCH",
        callback=_compiled_for,
        help=f"Target, such as sm_90a, or a chip, such as H100. {_DEFAULT}",
    )(verb)


def targets_option(verb: _F) -> _F:
    """Gives a verb ``--arch``, repeatable, as the parameter ``archs``: the targets that it compiles for."""
    return click.option(
        "--arch",
        "archs",
        multiple=True,
        callback=_compiled_for,
        help=f"Target or chip (repeatable). {_DEFAULT}",
    )(verb)


def only_targets_option(verb: _F, help_text: str = "Only this target, or targets of this chip (repeatable).") -> _F:
    """Gives a verb ``--arch``, repeatable, as the parameter ``archs``: the verb uses only kernels for these targets."""
    return click.option("--arch", "archs", multiple=True, callback=_run_by, help=help_text)(verb)


def _compiled_for(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
    if value:
        return _target(value) if isinstance(value, str) else tuple(map(_target, value))
    ctx.meta[UNTARGETED] = True
    return value


def _target(name: str) -> str:
    from cache_engine.evaluator.catalogue.search import target_of

    return target_of(name)


def _run_by(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    from cache_engine.evaluator.catalogue.search import targets_called

    return tuple(target for name in value for target in targets_called(name.lower()) or (name,))

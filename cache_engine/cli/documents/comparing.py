"""Documents that compare kernels: two of them, and a request with the nearest entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from cache_engine.cli.documents import filled
from cache_engine.insight.comparison import Pair, in_words
from cache_engine.model.kernel import KernelConfig

if TYPE_CHECKING:
    from cache_engine.insight.comparison import Comparison
    from cache_engine.insight.explanation import Explanation
    from cache_engine.insight.inspection import Inspected


class Difference(msgspec.Struct, kw_only=True):
    """A key component in which the nearest entry differs.

    Attributes:
        there, here: its value in the nearest entry, and in the request; ``None`` where it has no such component.
        follows: whether it differs only because another component does.
        text: the difference in words.
    """

    component: str
    there: str | int | float | None
    here: str | int | float | None
    follows: bool
    text: str


class Nearest(msgspec.Struct, kw_only=True):
    """The entry whose key differs least from the one requested."""

    key: str
    name: str
    differences: list[Difference]


class Explained(msgspec.Struct, kw_only=True):
    """What ``explain`` prints.

    Attributes:
        tier: which tier has the entry; ``None`` after a miss.
        toolchain_from: what names the toolchain in the key: ``installed``, ``pack NAME`` or ``store``.
        compared: how many entries were compared with the request.
        notes: what else explains the miss, in words.
    """

    hit: bool
    tier: str | None
    key: str
    name: str
    arch: str
    compiler: str
    family: str
    config: KernelConfig
    config_from: str
    toolchain_from: str = "installed"
    specialisation: str
    opt_level: int
    compared: int
    nearest: Nearest | None
    notes: list[str]


class Compared(msgspec.Struct, kw_only=True):
    """What ``diff`` prints: components and config as far as they differ, the rest whole.

    Attributes:
        notes: what the differences of the keys mean, what was not compared and why, in words.
    """

    keys: list[str]
    names: list[str]
    components: Sequence[Pair]
    config: Sequence[Pair]
    resources: Sequence[Pair]
    occupancy: Sequence[Pair]
    instructions: Sequence[Pair]
    notes: list[str]
    sass: str | UnsetType = UNSET


# ---- From the engine's values ----


def compared(first: Inspected, second: Inspected, comparison: Comparison, sass: str | None) -> Compared:
    """The document of a comparison; ``sass`` is the difference of the machine code, if that was requested."""
    return filled(
        Compared,
        comparison,
        keys=[first.key, second.key],
        names=[first.name, second.name],
        notes=list(dict.fromkeys((*comparison.notes, *first.notes, *second.notes))),
        sass=UNSET if sass is None else sass,
    )


def explained(found: Explanation) -> Explained:
    """The document of an explanation."""
    chosen, closest = found.selection, found.nearest
    pairs = () if closest is None else (*closest.causes, *closest.consequences)
    return filled(
        Explained,
        found,
        chosen,
        chosen.problem,
        hit=found.tier is not None,
        arch=str(chosen.problem.arch),
        compiler=chosen.compiler.name,
        family=chosen.family.name,
        notes=list(found.notes),
        nearest=None
        if closest is None
        else filled(
            Nearest,
            closest.record,
            differences=[
                Difference(
                    component=pair.name,
                    there=pair.first,
                    here=pair.second,
                    follows=pair in closest.consequences,
                    text=in_words(pair),
                )
                for pair in pairs
            ],
        ),
    )

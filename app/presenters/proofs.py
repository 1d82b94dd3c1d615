"""The proofs of kernel families on GPUs: a check for Overview, and lines for Kernels, By target."""

from __future__ import annotations

from app.presenters.overview import FINE, LOOK, Check
from cache_engine.kernels.select import TO_PROVE
from cache_engine.model.proof import PROVED, REFUSED
from cache_engine.store.layout import StoreLayout
from cache_engine.store.proofs import states

_REFUSED = "A GPU refused this family, so a plain one serves there until the toolchain changes."


def proof_checks(layout: StoreLayout) -> list[Check]:
    """A check of each family that was proved or refused on a GPU; the newest refusal is its cause."""
    checks = []
    for family in sorted(TO_PROVE):
        found = states(layout, family)
        refused = [one for one in found if one.state == REFUSED]
        if refused:
            checks.append(Check(f"Family {family}", LOOK, _REFUSED, f"{refused[0].words}\n{refused[0].command}"))
        elif proved := [one for one in found if one.state == PROVED]:
            checks.append(Check(f"Family {family}", FINE, "A GPU proved this family.", proved[0].words))
    return checks


def proof_lines(layout: StoreLayout) -> list[str]:
    """A line for each state of a family on a GPU, newest first."""
    return [f"{family}, {one.toolchain}: {one.words}" for family in sorted(TO_PROVE) for one in states(layout, family)]

"""Numbers that are not whole, as arguments."""

from __future__ import annotations

import math
from typing import Any

import click


class Amount(click.FloatRange):
    """A number in a range; ``nan`` is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number

"""What a user's own measurements changed about a GPU: a few factors, and how far predictions were off then."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from cache_engine.errors import InvalidHardware

FACTORS = ("launch", "compute", "memory", "steps", "epilogue")
"""The factors of a calibration, each of a time of the model."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors by which times of the model are multiplied on one GPU, fitted on measurements of it.

    Args:
        id: of the measurements, 12 hexadecimal digits; results say which calibration made them.
        source: where the measurements are from.
        model: version of the GPU model.
        base: whose parameters the factors are of: the GPU's own name, or ``"all"``.
        rows: how many.
        launch, compute, memory, steps, epilogue: factors.
        low, high: in between were two in three of measured / predicted, of rows that the fit did not see.
        error_before, error_after: mean absolute error of predictions, as a share, before and by cross-validation.

    Raises:
        InvalidHardware: naming the field and what it may be.
    """

    id: str
    source: str
    model: str
    base: str
    rows: int
    launch: float
    compute: float
    memory: float
    steps: float
    epilogue: float
    low: float
    high: float
    error_before: float
    error_after: float

    def __post_init__(self) -> None:
        for name in ("id", "source", "model", "base"):
            value = getattr(self, name)
            if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
                raise InvalidHardware(f"calibration.{name} must be a text of 1 to 200 printable characters")
        for field in fields(self)[4:]:
            value = getattr(self, field.name)
            least = 0.0 if field.name.startswith("error") else 0.001
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e9:
                raise InvalidHardware(f"calibration.{field.name} is {value!r}; it must be a number above 0")
        if self.low > self.high:
            raise InvalidHardware(f"calibration.low is {self.low:g}, above calibration.high, {self.high:g}")

    @classmethod
    def from_dict(cls, description: Any, source: str) -> Calibration:
        """The calibration in a JSON object; raises ``InvalidHardware`` naming a missing, unknown or invalid field."""
        names = [field.name for field in fields(cls)]
        if not isinstance(description, dict):
            raise InvalidHardware(f"{source}: calibration is no JSON object of fields such as {names[0]}")
        for name in names:
            if name not in description:
                raise InvalidHardware(f"{source} lacks the field calibration.{name}")
        unknown = sorted(set(description) - set(names))
        if unknown:
            raise InvalidHardware(f"{source} has an unknown field calibration.{unknown[0]}")
        return cls(**description)

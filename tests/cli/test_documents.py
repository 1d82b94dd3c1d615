"""How a document is filled from the values of the engine."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from cache_engine.cli.documents import filled


class Document(msgspec.Struct, kw_only=True):
    """What a verb prints."""

    name: str
    m: int
    ms: float | None
    note: str = "none"


@dataclass
class Value:
    """One of the engine's values."""

    name: str
    ms: float | None = None

    @property
    def m(self) -> int:
        """One that is worked out."""
        return 64


@dataclass
class Other:
    """Another."""

    name: str
    ms: float
    note: str = "known"


def test_a_field_is_that_of_the_first_value_that_has_it_unless_it_is_given() -> None:
    assert filled(Document, Value("first"), Other("second", 2.0)) == Document(name="first", m=64, ms=None, note="known")
    assert filled(Document, Value("first"), name="given") == Document(name="given", m=64, ms=None)


def test_a_field_that_no_value_has_is_an_error_and_never_left_out() -> None:
    with pytest.raises(TypeError, match="'m'"):
        filled(Document, Other("second", 2.0))

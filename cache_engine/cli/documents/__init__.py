"""The JSON documents of some verbs: a contract with other programs, so fields are only ever added.

- ``store`` -- ``doctor``
- ``measured`` -- ``timings``, ``tune``
- ``asking``, ``promoting`` -- ``demand``
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_D = TypeVar("_D", bound=msgspec.Struct)


def filled(document: type[_D], *values: object, **fields: Any) -> _D:
    """A document: ``fields``, and each other field from the first of the values that has one of its name."""
    for name in document.__struct_fields__:
        for value in values:
            if name not in fields and hasattr(value, name):
                fields[name] = getattr(value, name)
    return document(**fields)

"""JSON documents: their text, and the fields of values that they contain."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_json(document: object) -> str:
    """A JSON document as text, indented by two spaces."""
    try:
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    except UnicodeEncodeError:  # the name of a file that is not UTF-8; readers in Python can restore it
        return json.dumps(msgspec.to_builtins(document), indent=2)


def fields_of(value: DataclassInstance | msgspec.Struct) -> dict[str, Any]:
    """The fields of a value by name, not converted."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}


def picked(value: object, *names: str) -> dict[str, Any]:
    """The fields and properties with these names, in this order."""
    return {name: getattr(value, name) for name in names}

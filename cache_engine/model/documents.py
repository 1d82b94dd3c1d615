"""JSON documents: the results of verbs and jobs as text, and the parts of a value that a document states."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_json(document: object) -> str:
    """The text of a JSON document, indented by two spaces."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def fields_of(value: DataclassInstance | msgspec.Struct) -> dict[str, Any]:
    """The fields of a value, as they are."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}


def picked(value: object, *names: str) -> dict[str, Any]:
    """The fields and properties of these names, in this order."""
    return {name: getattr(value, name) for name in names}

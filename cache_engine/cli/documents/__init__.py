"""The JSON documents that verbs print: a contract with other programs, so fields are only ever added.

Each document is a type. The verb fills one, ``to_json`` writes it, the terminal prints from it, and the dashboard reads
a job's result as one.

- ``kernels`` -- ``compile``, ``time``, ``ls``, ``search``, ``show``
- ``comparing`` -- ``diff``, ``explain``
- ``store`` -- ``stats``, ``clean``, ``verify``, ``quarantine``, ``sync``, ``doctor``, ``report``
- ``moving`` -- ``export``, ``import``, ``remote``, and who signed, in ``verify``
- ``lengths`` -- the compile queue, and how long things took, in ``stats``; ``jobs``; ``farm status``
- ``toolchains`` -- ``toolchains``, ``coverage``
- ``migrating`` -- ``migrate``
- ``decisions`` -- ``log``, ``pin``, ``unpin``, ``history``, ``audit``
- ``measured`` -- ``timings``, ``tune``, ``warm``, ``sample``
- ``asking`` -- ``demand``
- ``caches`` -- ``caches``
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_D = TypeVar("_D", bound=msgspec.Struct)


def to_json(document: object) -> str:
    """The text of a JSON document, indented by two spaces."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def filled(document: type[_D], *values: object, **fields: Any) -> _D:
    """A document: ``fields``, and each other field from the first of the values that has one of its name."""
    for name in document.__struct_fields__:
        for value in values:
            if name not in fields and hasattr(value, name):
                fields[name] = getattr(value, name)
    return document(**fields)

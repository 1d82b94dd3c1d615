"""The JSON documents that verbs print: a contract with other programs, so fields are only ever added.

Each document is a type. The verb fills one, ``to_json`` writes it, the terminal prints from it, and the dashboard reads
a job's result as one.

- ``kernels`` -- ``compile``, ``time``, ``ls``, ``search``, ``show``
- ``comparing`` -- ``diff``, ``explain``
- ``store`` -- ``stats``, ``clean``, ``verify``, ``quarantine``, ``sync``, ``doctor``, ``report``
- ``moving`` -- ``export``, ``import``, ``remote``, and who signed, in ``verify``
- ``lengths`` -- the compile queue, and how long things took, in ``stats``; ``jobs``; ``farm status``
- ``toolchains`` -- ``regressions``
- ``migrating`` -- ``migrate``
- ``decisions`` -- ``log``, ``pin``, ``unpin``, ``history``, ``audit``
- ``measured`` -- ``timings``, ``tune``, ``warm``, ``sample``
- ``evaluator`` -- ``evaluate`` of a shape, ``evaluations``
- ``models`` -- ``evaluate`` of a model
- ``asking`` -- ``demand``
- ``caches`` -- ``caches``
"""

from __future__ import annotations

from cache_engine.model.documents import filled, to_json

__all__ = ["filled", "to_json"]

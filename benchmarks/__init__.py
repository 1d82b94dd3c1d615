"""Measurements and simulations: benchmarks, replays of requests, the fit of the GPU model. In a checkout only.

``python -m benchmarks`` runs it.

- ``cases`` -- comparisons, each with a reference that is measured side by side in the same run (``timing``,
  ``results``): ``entries`` of a store, ``kernels``, pages in a ``browser``, ``evaluator``, ``farm``
- ``replay`` -- what policies of compiling, and orders of eviction, cost on requests
- ``fit_gpu`` -- the parameters of the GPU model, from measured latencies
"""

from pathlib import Path

ROOT = Path(__file__).parent.parent
"""The checkout."""

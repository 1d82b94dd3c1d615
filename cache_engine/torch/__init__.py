"""PyTorch: operators with our kernels, and a model's linear layers swapped for them. Needs torch 2.6 or newer.

::

    import cache_engine.torch as gemm

    print(gemm.swap(model))                  # nn.Linear layers use our kernels; weights stay the same tensors
    gemm.warm(model, m=range(1, 257))        # on a GPU: compiled and loaded before the first request
    model = torch.compile(model)             # no graph break

- ``calls`` -- the functions: ``linear``, ``mm``, ``scaled_mm``, ``grouped_mm``, ``external_matmul``
- ``modules`` -- ``Linear``, ``swap``, ``unswap``, ``warm``
- ``ops`` -- the operators ``torch.ops.gemm_cache``, and checks of their arguments; ``gradients`` -- their gradients,
  autocast and ``vmap``
- ``launches`` -- plans, kernels and launches for tensors on a GPU; ``products`` -- PyTorch's own products, for all
  other tensors

Never imported by the rest of this package.
"""

try:
    import torch as _torch
except ModuleNotFoundError as error:
    from cache_engine.errors import ExtraMissing

    raise ExtraMissing(
        "cache_engine.torch needs PyTorch, which is not installed; run: pip install 'torch>=2.6'"
    ) from error

from cache_engine.torch import gradients as _gradients
from cache_engine.torch.calls import external_matmul, grouped_mm, linear, mm, scaled_mm
from cache_engine.torch.launches import Serving, serving
from cache_engine.torch.modules import Linear, Swapped, swap, unswap, warm

__all__ = [
    "Linear",
    "Serving",
    "Swapped",
    "external_matmul",
    "grouped_mm",
    "linear",
    "mm",
    "scaled_mm",
    "serving",
    "swap",
    "unswap",
    "warm",
]

del _torch, _gradients

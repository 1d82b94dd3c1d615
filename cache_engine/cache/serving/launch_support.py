"""Launch support: the code of a kernel that serves, and a product that cuBLAS computes where there is none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cache_engine.cache.serving import CompiledKernel
from cache_engine.store.journal import Journal
from cache_engine.store.journal.spans import MODULE

if TYPE_CHECKING:
    from cache_engine.cache.queue import PendingKernel
    from cache_engine.gpu.multiply import Code


class Product(NamedTuple):
    """The result of ``matmul``, or of an operator, when it is called with ``wait``.

    Attributes:
        array: the product.
        served_by: the name of the kernel's function, or ``"cuBLAS, by CuPy"``.
        better: the kernel that is compiled, where another serves in its place; as of ``CompiledKernel``.
    """

    array: Any
    served_by: str
    better: PendingKernel[CompiledKernel] | None


def code_of(got: CompiledKernel | PendingKernel[CompiledKernel], journal: Journal) -> Code:
    """The code of a kernel; none of one that is still compiled, where no kernel that is there serves.

    Args:
        journal: counts each further launch, and how long loading takes.
    """
    from cache_engine.gpu.multiply import Code

    if isinstance(got, CompiledKernel):
        loaded = partial(journal.spans.add, MODULE)
        return Code(got.key, got.cubin, got.entry, got.launch, journal.asked, got.better, loaded)
    return Code(got.key, None, "", None, journal.asked, got)

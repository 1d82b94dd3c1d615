"""Launch support: the code of the kernel that serves; if no kernel is ready yet, code that calls cuBLAS."""

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
    """The result of ``matmul``, or of an operator, that is called with ``wait_ms``.

    Attributes:
        array: the product.
        served_by: the name of the kernel's function, or ``"cuBLAS, by CuPy"``.
        better: the handle of the kernel that is compiled while another serves, as in ``CompiledKernel``.
    """

    array: Any
    served_by: str
    better: PendingKernel[CompiledKernel] | None


def code_of(got: CompiledKernel | PendingKernel[CompiledKernel], journal: Journal) -> Code:
    """The code to launch: the kernel's; or for a kernel that is still being compiled, code that calls cuBLAS.

    Args:
        journal: counts each further launch, and the time of loading the code.
    """
    from cache_engine.gpu.multiply import Code

    if isinstance(got, CompiledKernel):
        loaded = partial(journal.spans.add, MODULE)
        return Code(got.key, got.cubin, got.entry, got.launch, journal.asked, got.better, loaded)
    return Code(got.key, None, "", None, journal.asked, got)

"""Launch support: the code of a kernel that serves, and a product that cuBLAS computes where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cache_engine.engine.serving.kernel import CompiledKernel
from cache_engine.errors import NotCached
from cache_engine.model.gemm import GemmProblem
from cache_engine.store.journal import Journal
from cache_engine.store.journal.spans import MODULE

if TYPE_CHECKING:
    from cache_engine.device.multiply import Code
    from cache_engine.engine.cache import Cache
    from cache_engine.queue.behind import Better

    Find = Callable[[], "CompiledKernel | Better[CompiledKernel]"]

_log = logging.getLogger(__name__)


class Product(NamedTuple):
    """What ``matmul``, or an operator, returns when it is called with ``wait``.

    Attributes:
        array: the product.
        served_by: the name of the kernel's function, or ``"cuBLAS, by CuPy"``.
        better: the kernel that is compiled, where another serves in its place; as of ``CompiledKernel``.
    """

    array: Any
    served_by: str
    better: Better[CompiledKernel] | None


def code_of(got: CompiledKernel | Better[CompiledKernel], journal: Journal) -> Code:
    """The code of a kernel; none of one that is still compiled, where no kernel that is there serves.

    Args:
        journal: counts each further launch, and how long loading takes.
    """
    from cache_engine.device.multiply import Code

    if isinstance(got, CompiledKernel):
        loaded = partial(journal.spans.add, MODULE)
        return Code(got.key, got.cubin, got.entry, got.launch, journal.asked, got.better, loaded)
    return Code(got.key, None, "", None, journal.asked, got)


def code_found(cache: Cache, problem: GemmProblem, family: str | None, compiler: str | None, find: Find) -> Code:
    """The code of what ``find`` returns; with compiling switched off, and no kernel in any tier, cuBLAS's product.

    Raises:
        NotCached: when a family or compiler was named: then no other may serve.
    """
    try:
        return code_of(find(), cache.journal)
    except NotCached as missing:
        if family is not None or compiler is not None or problem.mode:
            raise
        from cache_engine.device.multiply import Code

        _log.info("cuBLAS serves: %s", missing)
        selection = cache.select(cache.targeted(problem))
        return Code(selection.key, None, "", None, cache.journal.asked)

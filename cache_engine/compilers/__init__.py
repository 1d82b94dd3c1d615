"""Compilers, by the name they are asked for."""

from cache_engine.compilers.base import Compiler
from cache_engine.compilers.nvcc import Nvcc
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.compilers.triton import Triton

# Of those that take the same templates, the first is used where none is asked for.
COMPILERS: dict[str, Compiler] = {compiler.name: compiler for compiler in (Nvrtc(), Nvcc(), Triton())}

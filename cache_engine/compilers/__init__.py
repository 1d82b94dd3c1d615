"""Compilers, by the name they are asked for."""

from cache_engine.compilers.base import Compiler
from cache_engine.compilers.nvcc import Nvcc
from cache_engine.compilers.nvrtc import Nvrtc

COMPILERS: dict[str, Compiler] = {compiler.name: compiler for compiler in (Nvrtc(), Nvcc())}

"""The compilers, by name."""

from cache_engine.compilers.base import Compiler
from cache_engine.compilers.nvcc import Nvcc
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.compilers.triton import Triton

# The default for a family is the first compiler here that takes its template.
COMPILERS: dict[str, Compiler] = {compiler.name: compiler for compiler in (Nvrtc(), Nvcc(), Triton())}

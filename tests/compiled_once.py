"""A compiler compiles a source once in a run of the tests; each further compile of it takes what was made.

Many tests ask for the same kernels; NVRTC takes 0.2 s for one, NVCC and Triton a second or two. A result is stored by
all that can change it: the source, the target, the flags, and the fingerprint of the compiler. Tests that are about
compiling compile; ``conftest.py`` lists them. Commands that ``tests/cli/forked.py`` forks do as the tests do, commands
that are started compile.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cache_engine.compilers.base import Compiled, Compiler
from cache_engine.compilers.contents import check_environment_unchanged
from cache_engine.compilers.nvcc import Nvcc
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.compilers.triton import Triton

# The folder, for processes that tests fork.
FOLDER = "TESTS_COMPILED_BEFORE"


def install(replace: Callable[[type, str, Any], None]) -> None:
    """Has every compile look in the folder first, which processes share."""
    folder = Path(os.environ[FOLDER])
    for compiler in (Nvrtc, Nvcc, Triton):
        replace(compiler, "compile", _once(compiler.compile, folder))


def _once(really: Callable[[Any, str, str], Compiled], folder: Path) -> Callable[[Any, str, str], Compiled]:
    def compile_once(self: Compiler, source: str, arch: str) -> Compiled:
        self.load()
        check_environment_unchanged()
        asked = repr((source, arch, self.flags, self.fingerprint())).encode()
        path = folder / hashlib.sha256(asked).hexdigest()
        if path.exists():
            found: Compiled = pickle.loads(path.read_bytes())
            return found
        made = really(self, source, arch)
        written = path.with_suffix(f".{secrets.token_hex(4)}")
        written.write_bytes(pickle.dumps(made))
        written.rename(path)
        return made

    return compile_once

"""NVRTC compiles a source once in a run of the tests; each further compile of it takes what was made.

Many tests ask for the same kernels, and a compile takes 0.2 seconds. Tests that are not about compiling take the
fixture ``compiled_once``. A result is stored by all that can change it: the source, the target, the flags, and the
fingerprint of the compiler.
"""

from __future__ import annotations

import hashlib
import pickle
import secrets
from pathlib import Path

import pytest

from cache_engine.compilers.base import Compiled
from cache_engine.compilers.contents import check_environment_unchanged
from cache_engine.compilers.nvrtc import Nvrtc


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Has every compile look in the folder first, which processes share."""
    really = Nvrtc.compile

    def compile_once(self: Nvrtc, source: str, arch: str) -> Compiled:
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

    monkeypatch.setattr(Nvrtc, "compile", compile_once)

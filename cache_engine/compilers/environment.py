"""The environment variables that NVRTC reads, and which of them are part of the key.

NVRTC runs in this process, where other threads may read and set variables, so we cannot hide any from it. The key
contains each variable that is set and could change the output. NVCC and Triton run in separate processes, with an
environment of named variables only.

Source: every call of ``getenv`` in libnvrtc 12.9, 13.0 and 13.5, found in its machine code and by a ``getenv`` that
records the names it gets. ``tests/compilers/test_environment.py`` finds them again in the installed libraries.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache

from cache_engine.errors import CompilerMissing

KEYED = (
    "AS_SECURE_LOG_FILE",
    "CAN_FINALIZE_DEBUG",
    "DUMP_KNOBS_TO_FILE",
    "EDG_BASE",
    "EDG_MODULES_PATH",
    "FINALIZER_CUBIE",
    "FINALIZER_USE_LEGACY_ELF_BUILDER",
    "LIBNVVM_DISABLE_CONCURRENT_API",
    "LLVM_IGNORED_ENV_VAR",
    "LLVM_OVERRIDE_PRODUCER",
    "NVRTCWIZ",
    "NVRTC_APPEND_FLAGS",
    "NVRTC_DISABLE_CONCURRENT_NVVM",
    "NVRTC_DISABLE_PCH",
    "NVRTC_INTERNAL_GLOBAL_LOCK",
    "NVRTC_PCH_HEAP_SIZE",
    "NVVM_IR_VER_CHK",
    "NV_NVVM_VERSION",
)
"""The key contains the values of these where they are set. All belong to NVIDIA or LLVM and are rarely set."""

_OPENSSL = "read by OpenSSL inside NVRTC, which a compile calls only for checksums"
_CRASH = "how LLVM prints the stack of a crash"
_PRINTED = "how messages look"
_FILES = "the folder of temporary files or of the user's files; our sources name none"

LEFT_OUT = {
    "COLUMNS": _PRINTED,
    "CTLOG_FILE": _OPENSSL,
    "CUDA_CACHE_DISABLE": "switches NVRTC's own cache, which our flags switch off",
    "EDG_COLORS": _PRINTED,
    "GCC_COLORS": _PRINTED,
    "HOME": _FILES,
    "HTTPS_PROXY": _OPENSSL,
    "LLVM_DISABLE_SYMBOLIZATION": _CRASH,
    "LLVM_ENABLE_SYMBOLIZER_MARKUP": _CRASH,
    "LLVM_SYMBOLIZER_PATH": _CRASH,
    "MAKEFLAGS": "the number of threads that make lends; set in every run of make",
    "NOCOLOR": _PRINTED,
    "NO_PROXY": _OPENSSL,
    "OPENSSL_CONF": _OPENSSL,
    "OPENSSL_CONF_INCLUDE": _OPENSSL,
    "OPENSSL_ENGINES": _OPENSSL,
    "OPENSSL_MODULES": _OPENSSL,
    "OPENSSL_ia32cap": _OPENSSL,
    "PATH": "where LLVM looks for its symbolizer",
    "PWD": "the working folder, which only debug information names; our flags ask for none",
    "TEMP": _FILES,
    "TEMPDIR": _FILES,
    "TERM": _PRINTED,
    "TMP": _FILES,
    "TMPDIR": _FILES,
    "bar": "LLVM compares it with an address that no variable can have",
    "http_proxy": _OPENSSL,
    "https_proxy": _OPENSSL,
    "no_proxy": _OPENSSL,
}
"""These do not change the code; the reason follows each. Hashing them would only make users and folders miss."""


@cache
def environment_of_nvrtc() -> str:
    """The environment in NVRTC's keys: each variable that is set, with a hash of its value; empty when none is set.

    It is a hash because a value may be a path. NVRTC reads some variables once per process, and so does this.
    """
    return _environment_now()


def check_environment_unchanged() -> None:
    """Refuses to compile after a variable has changed.

    Raises:
        CompilerMissing: because the kernel would be stored under the key of another environment.
    """
    if _environment_now() != environment_of_nvrtc():
        raise CompilerMissing(
            "an environment variable that NVRTC reads was changed while this process ran; set it before the process "
            f"starts, or leave it unset (they are {', '.join(KEYED)})"
        )


def _environment_now() -> str:
    # getenv, as in NVRTC, also sees what C libraries have set. PyDLL holds the GIL, so no Python thread changes the
    # environment meanwhile.
    getenv = ctypes.PyDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_char_p
    values = ((name, getenv(name.encode())) for name in KEYED)
    # A variable set to nothing is still set: NVRTC only checks whether some of them exist.
    return " ".join(f"{name}={hashlib.sha256(value).hexdigest()[:32]}" for name, value in values if value is not None)

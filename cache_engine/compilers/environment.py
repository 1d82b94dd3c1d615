"""Which environment variables NVRTC reads, and what of them enters the key.

NVRTC runs in this process, where other threads may read and set variables, so none can be hidden from it. Those that
are set, and could change what it makes, enter the key. NVCC and Triton run in processes of their own, which get an
environment of named variables.

Source: every call of ``getenv`` in libnvrtc 13.5, found in its machine code and by a ``getenv`` that notes the names it
is asked for. ``tests/compilers/test_environment.py`` finds them again in the library that is installed.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache

from cache_engine.errors import CompilerMissing

KEYED = (
    "AS_SECURE_LOG_FILE",
    "CAN_FINALIZE_DEBUG",
    "EDG_BASE",
    "FINALIZER_CUBIE",
    "FINALIZER_USE_LEGACY_ELF_BUILDER",
    "LIBNVVM_DISABLE_CONCURRENT_API",
    "LLVM_IGNORED_ENV_VAR",
    "LLVM_OVERRIDE_PRODUCER",
    "NVRTC_DISABLE_CONCURRENT_NVVM",
    "NVRTC_DISABLE_PCH",
    "NVRTC_INTERNAL_GLOBAL_LOCK",
    "NVRTC_PCH_HEAP_SIZE",
    "NVVM_IR_VER_CHK",
    "NV_NVVM_VERSION",
)
"""Those whose values enter the key where they are set. All are NVIDIA's own or LLVM's, and rarely set."""

_OPENSSL = "of the OpenSSL in it, which no compile calls but for checksums"
_CRASH = "how LLVM prints the stack of a crash"
_PRINTED = "how messages look"
_FILES = "where temporary files and the user's files are; our sources name none"

LEFT_OUT = {
    "COLUMNS": _PRINTED,
    "CTLOG_FILE": _OPENSSL,
    "CUDA_CACHE_DISABLE": "NVRTC's own cache, which our flags switch off",
    "EDG_COLORS": _PRINTED,
    "GCC_COLORS": _PRINTED,
    "HOME": _FILES,
    "HTTPS_PROXY": _OPENSSL,
    "LLVM_DISABLE_SYMBOLIZATION": _CRASH,
    "LLVM_ENABLE_SYMBOLIZER_MARKUP": _CRASH,
    "LLVM_SYMBOLIZER_PATH": _CRASH,
    "MAKEFLAGS": "how many threads make lends; set in every run of make",
    "NOCOLOR": _PRINTED,
    "NO_PROXY": _OPENSSL,
    "OPENSSL_CONF": _OPENSSL,
    "OPENSSL_CONF_INCLUDE": _OPENSSL,
    "OPENSSL_ENGINES": _OPENSSL,
    "OPENSSL_MODULES": _OPENSSL,
    "OPENSSL_ia32cap": _OPENSSL,
    "PATH": "LLVM looks for its symbolizer there",
    "PWD": "the working folder, which only debug information names; our flags ask for none",
    "TEMP": _FILES,
    "TEMPDIR": _FILES,
    "TERM": _PRINTED,
    "TMP": _FILES,
    "TMPDIR": _FILES,
    "bar": "LLVM compares it with an address that no variable has",
    "http_proxy": _OPENSSL,
    "https_proxy": _OPENSSL,
    "no_proxy": _OPENSSL,
}
"""Those that do not reach the code, each with the reason. Hashing them would part users and folders for nothing."""


@cache
def environment_of_nvrtc() -> str:
    """What of the environment enters NVRTC's keys: each variable set, with a hash of its value; else an empty text.

    The value itself may hold a path. NVRTC reads some variables once in a process, so this looks once too.
    """
    return _environment_now()


def check_environment_unchanged() -> None:
    """Refuses to compile once a variable has changed.

    Raises:
        CompilerMissing: then a kernel would be stored under the key of another environment.
    """
    if _environment_now() != environment_of_nvrtc():
        raise CompilerMissing(
            "an environment variable that NVRTC reads was changed while this process ran; set it before the process "
            f"starts, or leave it unset (they are {', '.join(KEYED)})"
        )


def _environment_now() -> str:
    # As NVRTC asks, and so with what C libraries have set. Through PyDLL, so that no Python thread changes the
    # environment meanwhile.
    getenv = ctypes.PyDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_char_p
    values = ((name, getenv(name.encode())) for name in KEYED)
    # One set to nothing is still set, and some are only looked for.
    return " ".join(f"{name}={hashlib.sha256(value).hexdigest()[:32]}" for name, value in values if value is not None)

"""What a worker of Dask runs for this program: a function by its name, with a message of ours as its one argument.

The worker is a plain ``dask worker``; the settings of its machine, such as GEMM_CACHE_REMOTE and
GEMM_CACHE_SIGNING_KEY, say where kernels go and who signs them.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from threading import Lock

from cache_engine.config import Settings
from cache_engine.errors import NotHereError
from cache_engine.farm.making import Maker, answer_of
from cache_engine.farm.messages import Asked, asked, encode
from cache_engine.trust.keys import SigningKey

_opening = Lock()  # a worker may have several threads


def compile_kernel(text: object) -> str:
    """Has the remote have the kernel that a message asks for; returns the answer, as text.

    Raises:
        UsageError: for what is no message.
    """
    return encode(answer_of(asked(text), f"{socket.gethostname()}:{os.getpid()}", _made))


def _made(message: Asked) -> bool:
    with _opening:
        maker = _maker()
    return maker.made(message, maker.checked(message))


@cache
def _maker() -> Maker:
    settings = Settings.load()
    if settings.remote is None or settings.signing_key is None:
        here = socket.gethostname()
        raise NotHereError(f"set GEMM_CACHE_REMOTE and GEMM_CACHE_SIGNING_KEY for the Dask workers of {here}")
    key = SigningKey.read(settings.signing_key)
    batch = settings.for_batch(None).with_overrides({"enable_caching": True, "remote_mode": "off"})
    return Maker(batch, settings.remote, key)

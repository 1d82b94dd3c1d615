"""moto's S3 server, which keeps one promise more of S3: of all that store a new object at one time, one succeeds.

moto looks whether there is an object, and stores it, in two steps; here no other conditional write comes between.
Source of the promise: Amazon S3 User Guide, "How to prevent object overwrites with conditional writes".

Run as ``python -m tests.remote.s3_server PORT``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


class _OneWriter:
    """The application of moto, whose conditional writes come one after the other."""

    def __init__(self) -> None:
        self._moto: Callable[..., Iterable[bytes]] = DomainDispatcherApplication(create_backend_app)
        self._writes = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ or environ["REQUEST_METHOD"] != "PUT":
            return self._moto(environ, start_response)
        with self._writes:
            return self._moto(environ, start_response)


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), _OneWriter(), threaded=True)

"""The loggers of modules, with names that begin with ``cache_engine``.

Importing this package configures nothing: a program that sets up ``logging`` itself gets the messages as those of any
library. ``GEMM_CACHE_LOG`` or ``-v`` prints them on standard error; see ``log_handlers``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

# ``logging`` takes 3 ms to import, and most processes that find their kernels log nothing.
if TYPE_CHECKING:
    from logging import Logger

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels of Python's ``logging``, repeated here so that ``logging`` need not be imported."""


class Log:
    """The logger of a module. It imports ``logging`` at the first message that could be seen."""

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        """Names the logger; imports nothing."""
        self._name = name
        self._logger: Logger | None = None

    def is_on(self, level: int) -> bool:
        """Whether messages of this level are seen."""
        logger = self._logger or self._found(level)
        return logger is not None and logger.isEnabledFor(level)

    def debug(self, text: str, *values: object) -> None:
        """Logs a message of level DEBUG."""
        self._say(DEBUG, text, values)

    def info(self, text: str, *values: object, extra: dict[str, Any] | None = None) -> None:
        """Logs a message of level INFO; ``extra`` comes from ``fields``."""
        self._say(INFO, text, values, extra)

    def warning(self, text: str, *values: object) -> None:
        """Logs a message of level WARNING."""
        self._say(WARNING, text, values)

    def exception(self, text: str, *values: object) -> None:
        """Logs a message with the traceback of the exception that is being handled."""
        self._say(ERROR, text, values, is_error=True)

    def log(self, level: int, text: str, *values: object, extra: dict[str, Any] | None = None) -> None:
        """Logs a message of the given level; ``extra`` comes from ``fields``."""
        self._say(level, text, values, extra)

    def _say(
        self,
        level: int,
        text: str,
        values: tuple[object, ...],
        extra: dict[str, Any] | None = None,
        *,
        is_error: bool = False,
    ) -> None:
        if self.is_on(level) and self._logger is not None:
            # The message gets the line number of the caller's caller.
            self._logger.log(level, text, *values, extra=extra, exc_info=is_error, stacklevel=3)

    def _found(self, level: int) -> Logger | None:
        # If nothing has imported ``logging``, nothing has configured it, and it would print only warnings.
        if level < WARNING and "logging" not in sys.modules:
            return None
        from logging import getLogger

        self._logger = getLogger(self._name)
        return self._logger


def fields(event: str, **values: object) -> dict[str, Any]:
    """The ``extra`` argument for a message; with it, the JSON line of the message has these fields."""
    return {"fields": {"event": event, **values}}

"""Prints log messages on standard error if the user asks for them with ``GEMM_CACHE_LOG`` or ``-v``."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

_ROOT = "cache_engine"


def configure(asked: str) -> None:
    """Prints log messages of the level ``asked`` and above; another call changes level and form (text or JSON)."""
    level, _, form = asked.partition(":")
    logger = logging.getLogger(_ROOT)
    handler = next((each for each in logger.handlers if isinstance(each, _Handler)), None)
    if handler is None:
        handler = _Handler()
        logger.addHandler(handler)
    handler.setFormatter(_Json() if form else _Text(is_brief=level not in {"debug", "info"}))
    logger.setLevel(level.upper())


class _Handler(logging.StreamHandler[TextIO]):
    """A handler that prints to the present ``sys.stderr``, which a program may replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # as logging's own handler of last resort
        """Standard error."""
        return sys.stderr


class _Text(logging.Formatter):
    """Formats a message as one line for people. It replaces control characters, which could change the terminal."""

    def __init__(self, *, is_brief: bool) -> None:
        super().__init__(
            "%(levelname)s: %(message)s" if is_brief else "%(asctime)s %(levelname)s %(name)s: %(message)s"
        )

    def format(self, record: logging.LogRecord) -> str:
        """The line for a message."""
        from cache_engine.units import printable

        return printable(super().format(record), keep="\n" if record.exc_info else "")


class _Json(logging.Formatter):
    """Formats a message as one line with one JSON object, which has the message and, next to it, its event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for a message, in ASCII only, so control characters are escaped."""
        import json

        line: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)

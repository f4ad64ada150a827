"""Applying the `log` section to the `kvferry` loggers, and a logger for our HTTP servers."""

from __future__ import annotations

import logging

from kvferry.config.schema import LogOptions

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_MARK = "kvferry-default"
_LONGEST_REASON = 80


def apply_log_options(options: LogOptions, *, own_process: bool) -> None:
    """Set the level of the `kvferry` loggers; idempotent.

    `own_process`: the process is ours (a command), so a handler that writes to stderr is added. Inside an
    engine the engine's handlers are used, and only when the root logger has none do we add ours.
    """
    logger = logging.getLogger("kvferry")
    logger.setLevel(options.level.upper())
    present = any(handler.name == _MARK for handler in logger.handlers)
    if present or not (own_process or not logging.getLogger().handlers):
        return
    handler = logging.StreamHandler()
    handler.name = _MARK
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
    logger.propagate = False


class _Brief(logging.Filter):
    """Says in one line that a client sent what is no HTTP, where aiohttp shows where its parser failed."""

    def filter(self, record: logging.LogRecord) -> bool:
        from aiohttp.http import HttpProcessingError

        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            # What was sent is in the lines below the first.
            why = error.message.partition("\n")[0].rstrip(": ")[:_LONGEST_REASON]
            record.msg, record.args = f"{record.msg}: status %d, %r", (*(record.args or ()), error.code, why)
            record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
        return True


_BRIEF = _Brief()


def http_logger() -> logging.Logger:
    """Return what aiohttp's servers are given as `logger`. Other errors keep their tracebacks."""
    logger = logging.getLogger("kvferry.http")
    logger.addFilter(_BRIEF)  # which it does once
    return logger

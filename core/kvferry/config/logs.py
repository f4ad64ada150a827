"""Applying the `log` section to the `kvferry` loggers."""

from __future__ import annotations

import logging

from kvferry.config.schema import LogOptions

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_MARK = "kvferry-default"


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

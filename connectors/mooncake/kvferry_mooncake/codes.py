"""Mooncake's return codes, and which of KVFerry's errors they stand for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvferry.errors import KVFerryError, NotFoundError, UnavailableError

logger = logging.getLogger("kvferry.mooncake")

OK = 0
INVALID_ARGUMENT = -1
ADDRESS_NOT_REGISTERED = -3
ADDRESS_OVERLAPPED = -7
SOCKET = -102


def engine_code(call: Callable[[], Any], what: str) -> int:
    """Make a call of the transfer engine; return 0, or the code of its error, which is logged."""
    try:
        call()
    except KVFerryError as error:
        logger.error("%s failed: %s", what, error)
        return code_of(error)
    return OK


def code_of(error: KVFerryError) -> int:
    """Return what Mooncake's transfer engine answers in such a case."""
    if isinstance(error, NotFoundError):
        return ADDRESS_NOT_REGISTERED
    return SOCKET if isinstance(error, UnavailableError) else INVALID_ARGUMENT

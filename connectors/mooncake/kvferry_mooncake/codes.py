"""Mooncake's return codes, and which of KVFerry's errors they stand for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvferry.errors import (
    ConflictError,
    InvalidArgumentError,
    KVFerryError,
    NotFoundError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnavailableError,
)
from kvferry.handoff import WarningThrottle

logger = logging.getLogger("kvferry.mooncake")
_warnings = WarningThrottle()  # for all stores: a node that is gone is one cause, however many keys there are

# of the transfer engine
OK = 0
INVALID_ARGUMENT = -1
ADDRESS_NOT_REGISTERED = -3
ADDRESS_OVERLAPPED = -7
SOCKET = -102
# of the store
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
TRANSFER_FAIL = -800


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


_STORE_CODES: tuple[tuple[type[KVFerryError], int], ...] = (
    (ConflictError, OK),  # Mooncake keeps what is there, and calls that success
    (NotFoundError, OBJECT_NOT_FOUND),
    (OutOfRangeError, INVALID_PARAMS),
    (InvalidArgumentError, INVALID_PARAMS),
    (ResourceExhaustedError, NO_AVAILABLE_HANDLE),
)


_EXPECTED = (OK, OBJECT_NOT_FOUND)


def store_code(error: KVFerryError | None, what: str) -> int:
    """Return what Mooncake's store answers in such a case. The log says why something failed that was to do
    `what`, once for each cause and interval of `WarningThrottle`.
    """
    if error is None:
        return OK
    code = next((code for kind, code in _STORE_CODES if isinstance(error, kind)), TRANSFER_FAIL)
    if code not in _EXPECTED:
        cause = error.code if code == TRANSFER_FAIL else (what, error.code)
        logger.log(_warnings.level(cause), "%s failed: %s", what, error)
    return code


def refused(cause: str, text: str, *args: object) -> int:
    """Return -600; the log says why, once for each cause and interval."""
    logger.log(_warnings.level(cause), text, *args)
    return INVALID_PARAMS

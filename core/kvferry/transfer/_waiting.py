"""Waiting in native code without making the process deaf to signals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from kvferry.errors import InvalidArgumentError

_SLICE_S = 0.2  # Ctrl-C is noticed between slices, since a native wait cannot be interrupted

T = TypeVar("T")


def wait_in_slices(
    wait: Callable[[float], T], timeout_s: float, *, give_up: Callable[[], bool] = lambda: False
) -> T:
    """Call `wait(slice_s)` until its answer is true, `timeout_s` is over or `give_up()`; return it.

    `InvalidArgumentError` if `timeout_s` is not a number: it would never be over.
    """
    if math.isnan(timeout_s):
        raise InvalidArgumentError("a time of nan s is not possible")
    deadline = time.monotonic() + timeout_s
    while True:
        remaining = deadline - time.monotonic()
        answer = wait(max(0.0, min(remaining, _SLICE_S)))
        if answer or remaining <= _SLICE_S or give_up():
            return answer

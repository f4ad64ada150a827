"""Keeps one cause from flooding the log with equal warnings."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

WARNING_INTERVAL_S = 10.0


class WarningThrottle:
    """Lets one warning per key and interval through; the rest are for the debug log. Thread-safe."""

    def __init__(
        self, interval_s: float = WARNING_INTERVAL_S, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._quiet_until: dict[Hashable, float] = {}

    def level(self, key: Hashable) -> int:
        """Return the level at which to log now: `logging.WARNING`, or `logging.DEBUG` within the interval."""
        with self._lock:
            now = self._clock()
            if now < self._quiet_until.get(key, now):
                return logging.DEBUG
            self._quiet_until = {k: until for k, until in self._quiet_until.items() if until > now}
            self._quiet_until[key] = now + self._interval_s
            return logging.WARNING

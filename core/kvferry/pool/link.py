"""A process's way to the store: opened in the background, tried again until it could be.

From then on the store itself attaches anew when its node is lost.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kvferry.errors import KVFerryError, UnavailableError
from kvferry.handoff import WarningThrottle

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 10.0


class StoreLink:
    """Holds the store of this process. Thread-safe.

    `open_store` connects and may block for some seconds, so it runs on the thread that needs it, one at a
    time; after a failure nobody tries again for 0.5 to 10 s, and calls fail at once. `consequence` is what a
    failure means, for the log. `checked`: what moves between hosts is checked on its way
    (`transfer.checksum`).
    """

    def __init__(
        self,
        open_store: Callable[[], Any],
        *,
        consequence: str = "the pool cannot be used",
        checked: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_store = open_store
        self._consequence = consequence
        self._checked = checked
        self._clock = clock
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._store: Any = None
        self._closed = False
        self._pause_s = FIRST_PAUSE_S
        self._retry_at = 0.0
        self._why: KVFerryError | None = None
        self._warnings = WarningThrottle(clock=clock)

    def get(self) -> Any:
        """Return the store. Raises KVFerryError: it cannot be reached now, or was closed."""
        with self._lock:
            store = self._store
        return store if store is not None else self._opened()

    def current(self) -> Any:
        """Return the store if it is open, else None. Never blocks."""
        with self._lock:
            return self._store

    def attach(self) -> None:
        """Open the store now rather than when it is needed; a failure is logged, and it is tried again."""
        with contextlib.suppress(KVFerryError):
            self.get()

    def local(self) -> Any:
        """Return the store if it is open and its one node is on this host: calls then reach index and memory
        in place. Else None. Never blocks.
        """
        with self._lock:
            store = self._store
        return store if store is not None and store.in_place and len(store.members) == 1 else None

    def verify(self) -> bool | None:
        """Return what to tell a read about digests: to check them, since a network may have had the bytes, or
        None, to do as the store is set. Never blocks.
        """
        return None if self._checked or self.local() is not None else True

    def close(self) -> None:
        """Close the store; idempotent."""
        with self._lock:
            store, self._store = self._store, None
            self._closed = True
        if store is not None:
            store.close()

    def _opened(self) -> Any:
        with self._opening:
            with self._lock:
                if self._store is not None:
                    return self._store
                if self._closed:
                    raise UnavailableError("the way to the store is closed")
                if self._why is not None and self._clock() < self._retry_at:
                    raise self._why
            try:
                store = self._open_store()
            except KVFerryError as error:
                self._failed(error)
                raise
            return self._keep(store)

    def _keep(self, store: Any) -> Any:
        with self._lock:
            closed = self._closed
            if not closed:
                self._store, self._why, self._pause_s = store, None, FIRST_PAUSE_S
        if closed:
            store.close()
            raise UnavailableError("the way to the store is closed")
        return store

    def _failed(self, error: KVFerryError) -> None:
        with self._lock:
            self._why = error
            self._retry_at = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        logger.log(self._warnings.level("open"), "%s: %s", self._consequence, error)

"""What bounds a request in time: its deadline, the router's shutdown, and the client going away."""

from __future__ import annotations

import asyncio
import enum
from types import TracebackType


class Interruption(str, enum.Enum):
    """Why the router itself broke off a request."""

    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


class RequestScope:
    """Cancels the task that entered it, at a deadline or on request, and remembers why.

    A cancellation without an `interruption` came from outside: the client closed its connection.
    """

    def __init__(self, deadline_s: float) -> None:
        self.interruption: Interruption | None = None
        self._deadline_s = deadline_s
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> RequestScope:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(
            self._deadline_s, self.interrupt, Interruption.TIMEOUT
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._task = None

    def interrupt(self, reason: Interruption) -> None:
        """Break off the request, once; later calls and calls after its end do nothing."""
        if self._task is not None and self.interruption is None:
            self.interruption = reason
            self._task.cancel()

    def absorb(self) -> None:
        """Tell the task that its cancellation was handled, so that it may go on to answer the client."""
        if self._task is not None and hasattr(self._task, "uncancel"):
            self._task.uncancel()

"""What bounds waiting: a deadline, the router's shutdown, an engine that goes down, the client going away."""

from __future__ import annotations

import asyncio
import enum
from types import TracebackType


class Interruption(enum.StrEnum):
    """Why the router itself broke off a wait."""

    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    DOWN = "down"


class Scope:
    """Cancels the task that entered it, at a deadline or on request, and remembers why.

    A cancellation without an `interruption` came from outside: for the scope of a whole request, the client
    closed its connection; for one within that, the request itself was broken off.
    """

    def __init__(self, deadline_s: float) -> None:
        self.interruption: Interruption | None = None
        self._deadline_s = deadline_s
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Scope:
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
        """Tell the task that its cancellation was handled, so that it may go on."""
        if self._task is not None and hasattr(self._task, "uncancel"):
            self._task.uncancel()

    @property
    def is_only_cause(self) -> bool:
        """Whether a cancellation that is being handled came from this scope, and no other came with it."""
        if self.interruption is None or self._task is None:
            return False
        return not hasattr(self._task, "cancelling") or self._task.cancelling() == 1

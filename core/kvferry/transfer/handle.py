"""One submitted transfer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from typing import Any

from kvferry import _native
from kvferry._native import TransferStages
from kvferry.errors import DeadlineExceededError, KVFerryError
from kvferry.transfer._waiting import wait_in_slices

# A transfer settles at its deadline, plus the time its threads need to notice.
_SETTLE_MARGIN_S = 5.0

_MAY_STILL_LAND = "bytes of this write may still land: "  # as in native/src/transport/transport.h


def may_still_land(error: BaseException) -> bool:
    """Say whether bytes of the write that failed with `error` may still be written: nobody confirmed its end.

    Then its target must not be used for anything else until the peer answers again or is known to be gone.
    The native side says so in the text of errors of any code.
    """
    return isinstance(error, KVFerryError) and _MAY_STILL_LAND in str(error)


class Transfer:
    """A plan under way; made by `Engine.submit` and `Engine.execute`.

    It always settles, at the latest at its deadline. Local memory belongs to the transfer until it is
    settled. Thread-safe; may be awaited by several tasks and event loops. `await transfer` raises the error
    of a failed transfer and returns the transfer otherwise; `wait` and `wait_async` only tell whether it is
    settled.
    """

    def __init__(self, native: _native.Transfer, plan: _native.Plan, timeout_s: float) -> None:
        self._native = native
        self._plan = plan
        self._timeout_s = timeout_s

    @property
    def settled(self) -> bool:
        """Whether it is over: no thread touches local memory any more."""
        return self._native.settled

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until settled or for `timeout_s` (default: its deadline); return whether it is settled."""
        if self._native.settled:
            return True
        limit_s = self._timeout_s + _SETTLE_MARGIN_S if timeout_s is None else timeout_s
        return wait_in_slices(self._native.wait, limit_s)

    async def wait_async(self, timeout_s: float | None = None) -> bool:
        """As `wait`, without blocking the running event loop. Cancelling the wait does not cancel the
        transfer."""
        if self._native.settled:
            return True
        limit_s = self._timeout_s + _SETTLE_MARGIN_S if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        # A loop knows one callback per descriptor, so that each waiter needs its own.
        fd = os.dup(self._native.event_fd())
        try:
            loop.add_reader(fd, lambda: None if done.done() else done.set_result(None))
            try:
                await asyncio.wait_for(done, limit_s)
            except TimeoutError:
                return self._native.settled
            finally:
                loop.remove_reader(fd)
        finally:
            os.close(fd)
        return True

    def __await__(self) -> Generator[Any, None, Transfer]:
        return self._settle().__await__()

    async def _settle(self) -> Transfer:
        if not await self.wait_async():
            late = f"{_SETTLE_MARGIN_S:g} s after its deadline"
            raise DeadlineExceededError(f"{self!r} is not over {late}; it goes on")
        self.raise_if_failed()
        return self

    def cancel(self) -> None:
        """Let unfinished pieces fail with `CancelledError`; returns at once, settles soon."""
        self._native.cancel()

    @property
    def error(self) -> KVFerryError | None:
        """The first failure, or None if every piece was moved. Meaningful once settled."""
        error: KVFerryError | None = self._native.error()
        return error

    @property
    def piece_errors(self) -> list[KVFerryError | None]:
        """One entry for each piece given to `Engine.prepare`, in that order. Meaningful once settled."""
        return list(self._native.piece_errors())

    def raise_if_failed(self) -> None:
        """Raise `error` if there is one. Meaningful once settled."""
        error = self.error
        if error is not None:
            raise error

    @property
    def bytes(self) -> int:
        """How many bytes the plan moves."""
        return self._plan.bytes

    @property
    def seconds(self) -> float:
        """From submission to settlement."""
        return self._native.seconds

    @property
    def stages(self) -> TransferStages:
        """Where that time went. Meaningful once settled."""
        return self._native.stages

    @property
    def transport(self) -> str:
        """What moved it: "shm", "tcp", or "shm+tcp" when it was changed on the way; "file" or "local" with
        `Engine.self_peer`; "" until settled."""
        return self._native.transport

    def __repr__(self) -> str:
        state = "settled" if self.settled else "under way"
        return f"Transfer({self._plan.op}, {self._plan.pieces} pieces, {self._plan.bytes} bytes, {state})"

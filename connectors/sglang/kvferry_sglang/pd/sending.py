"""How the sends of a request end.

SGLang gives the pages of a failed request to another one as soon as the prefill server says that its writes
are over. So how a send ended is kept for that send, on the thread that made it: another to the same decode
server says nothing of it.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from kvferry_sglang.pd.engine import DONE, FAILED, UNSETTLED, failure_status

logger = logging.getLogger(__name__)


class LastSend(threading.local):
    """How the last send of each thread ended."""

    def __init__(self) -> None:
        self._status: int | None = None

    def begins(self) -> None:
        """A send of this thread begins."""
        self._status = DONE

    def add(self, status: int) -> int:
        """Note and return how one write of this thread's send ended, or all of it."""
        self._status = status if self._status is None else worse(self._status, status)
        return status

    def take_over(self) -> bool:
        """Say whether this thread's last send failed and nothing of it will be written any more; once."""
        status, self._status = self._status, None
        return status == FAILED


def worse(one: int, other: int) -> int:
    """Return the worse of two statuses, of which SGLang's own are any number for a failure."""
    if UNSETTLED in (one, other):
        return UNSETTLED
    return DONE if one == other == DONE else FAILED


def one_request_only(send: Callable[..., int]) -> Callable[..., int]:
    """Turn whatever a manager's send raises into the failure of its request: SGLang's worker thread would end
    with it, and no later request would ever be sent. The manager's `last_send` learns how it ended."""

    @functools.wraps(send)
    def send_or_fail(self: Any, peer: Any, *args: Any, **kwargs: Any) -> int:
        self.last_send.begins()
        try:
            status = send(self, peer, *args, **kwargs)
        except Exception as error:
            session = peer if isinstance(peer, str) else peer.mooncake_session_id
            logger.exception("%s to %s", send.__name__, session)
            self.engine.note_failure(session, error)
            status = failure_status(error)
        last: LastSend = self.last_send
        return last.add(status)

    return send_or_fail


def worst_of(writes: Sequence[Future[int]]) -> int:
    """Wait for writes that make one send, which each have a deadline, and return how it ended. After one that
    failed, those that have not begun are cancelled."""
    worst = DONE
    for write in writes:
        try:
            worst = worse(worst, write.result())
        except CancelledError:
            continue
        if worst != DONE:
            for other in writes:
                other.cancel()
    return worst

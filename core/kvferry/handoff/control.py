"""The consumer's side of the control messages: giving leases back with an answer, and renewing them."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvferry.errors import DeadlineExceededError, KVFerryError, PeerLostError
from kvferry.handoff.messages import (
    MAX_LEASES_PER_RENEW,
    Release,
    Released,
    ReleaseReason,
    Renew,
    StreamCancel,
    encode_message,
)

if TYPE_CHECKING:
    from kvferry.transfer import Engine, Peer

# A control message is small: no room for it in that time means that the peer does not read. On a machine with
# many runnable threads, who sends just before us was seen to need 0.3 s.
SEND_TIMEOUT_S = 1.0
_POLL_S = 0.05  # how often a waiting thread looks whether the peer is still there


class _Waiter:
    def __init__(self, peer_handle: int) -> None:
        self.peer_handle = peer_handle
        self.answered = threading.Event()
        self.held = False


class ControlClient:
    """Sends releases and renewals and matches the answers.

    Thread-safe. Only `release` waits, up to its timeout.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._correlations = itertools.count(1)
        self._lock = threading.Lock()
        self._waiters: dict[int, _Waiter] = {}
        self._counts: Counter[str] = Counter()

    def release(
        self,
        peer: Peer,
        lease_id: str,
        reason: ReleaseReason,
        timeout_s: float,
        content: str = "",
        *,
        reader: int = 0,
        readers: int = 1,
        patience_s: float = 0.0,
    ) -> bool:
        """Give a lease back and return whether it had been held until then, and for `content` if given.

        It ends when all `readers` have given it back; `reader` counts from 0.

        A peer that is silent for `timeout_s` is asked whether it lives, which its transfer engine answers by
        itself. If so, its interpreter is busy, and the answer is waited for until `patience_s` have passed.

        Raises PeerLostError or DeadlineExceededError when no answer came, or what `Engine.send` raises.
        """
        started, limit_s = self._clock(), timeout_s
        waiter = _Waiter(peer.handle)
        with self._lock:
            correlation = next(self._correlations)
            self._waiters[correlation] = waiter
        try:
            body = encode_message(Release(lease_id, correlation, reason, content, reader, readers))
            self._engine.send(peer, body, timeout_s=min(timeout_s, SEND_TIMEOUT_S))
            while not waiter.answered.wait(_POLL_S):
                if not peer.alive:
                    raise PeerLostError(
                        f"prefill engine at {peer.endpoint} was lost before it confirmed lease {lease_id}"
                    )
                waited_s = self._clock() - started
                if waited_s < limit_s:
                    continue
                alive = waited_s < patience_s and lives(peer, min(timeout_s, patience_s - waited_s))
                limit_s = min(self._clock() - started + timeout_s, max(patience_s, timeout_s))
                if not alive and not waiter.answered.is_set():
                    raise DeadlineExceededError(
                        f"prefill engine at {peer.endpoint} did not confirm lease {lease_id} "
                        f"within {waited_s:.1f} s"
                    )
            return waiter.held
        finally:
            with self._lock:
                del self._waiters[correlation]

    def cancel_stream(self, peer: Peer, stream: str, reason: ReleaseReason) -> None:
        """Say that nobody wants a prefill under way. Not answered. Raises what `Engine.send` raises."""
        self._engine.send(peer, encode_message(StreamCancel(stream, reason)), timeout_s=SEND_TIMEOUT_S)

    def renew(self, peer: Peer, lease_ids: Sequence[str]) -> None:
        """Ask for more time for `lease_ids`. Raises what `Engine.send` raises."""
        for start in range(0, len(lease_ids), MAX_LEASES_PER_RENEW):
            body = encode_message(Renew(tuple(lease_ids[start : start + MAX_LEASES_PER_RENEW])))
            self._engine.send(peer, body, timeout_s=SEND_TIMEOUT_S)

    def on_released(self, peer_handle: int, message: Released) -> None:
        """Take an answer of the peer; one that nobody waits for is counted and ignored."""
        with self._lock:
            waiter = self._waiters.get(message.correlation)
            if waiter is None or waiter.peer_handle != peer_handle or waiter.answered.is_set():
                self._counts["late_answers"] += 1
                return
            waiter.held = message.held
            waiter.answered.set()

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call: late_answers."""
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
            return counts


def lives(peer: Peer, timeout_s: float) -> bool:
    """Whether the engine at the other end answers; not whether its interpreter does."""
    try:
        peer.refresh(timeout_s)
    except KVFerryError:
        return False
    return True

"""Giving leases back from a process that has no KV cache: the router."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kvferry.errors import InvalidArgumentError, KVFerryError
from kvferry.handoff.control import ControlClient
from kvferry.handoff.messages import ReleaseReason
from kvferry.handoff.params import (
    LeaseAddress,
    StreamAddress,
    names_stream,
    parse_lease_address,
    parse_stream,
)
from kvferry.handoff.peers import PeerBook
from kvferry.handoff.service import MessageLoop

if TYPE_CHECKING:
    from kvferry.transfer import Engine

logger = logging.getLogger(__name__)

RELEASE_THREADS = 4


class LeaseReleaser:
    """Gives back leases that no decode engine will use, so that the prefill engine's blocks are free at once.

    For the cases that the decode engine never sees: the client hung up after the prefill, or the decode
    engine refused the request. The engine stays the caller's; close this before it. Thread-safe.
    """

    def __init__(self, engine: Engine, *, allow_remote: bool, connect_timeout_s: float = 1.0) -> None:
        self._control = ControlClient(engine)
        self._peers = PeerBook(engine, None, allow_remote=allow_remote, connect_timeout_s=connect_timeout_s)
        self._pool = ThreadPoolExecutor(RELEASE_THREADS, thread_name_prefix="kvferry-release")
        self._loop = MessageLoop(engine, control=self._control, name="kvferry-release-answers")
        self._loop.start()

    async def release_lease(
        self, params: object, reason: ReleaseReason = "aborted", *, timeout_s: float = 1.0
    ) -> bool:
        """Give back the lease in a prefill engine's `kv_transfer_params`, or end the stream that a decode
        engine's name.

        Returns whether it was still held at every rank, or every rank could be told. Never raises for bad
        params or an unreachable prefill engine: the answer is then False, and the lease runs out by itself.
        Takes at most about `timeout_s`.
        """
        address: LeaseAddress | StreamAddress
        try:
            address = parse_stream(params) if names_stream(params) else parse_lease_address(params)
        except InvalidArgumentError as error:
            logger.debug("no lease to give back: %s", error)
            return False
        loop = asyncio.get_running_loop()
        jobs = [
            loop.run_in_executor(self._pool, self._job(address, rank, reason, timeout_s))
            for rank in range(len(address.node_ids))
        ]
        return all(await asyncio.gather(*jobs))

    def close(self) -> None:
        """Stop the threads; releases under way end by their timeouts."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._loop.close()

    def _job(
        self, address: LeaseAddress | StreamAddress, rank: int, reason: ReleaseReason, timeout_s: float
    ) -> Callable[[], bool]:
        def release() -> bool:
            endpoint = address.endpoints[rank]
            try:
                known = self._peers.reach(address.node_ids[rank], endpoint, timeout_s)
                if isinstance(address, LeaseAddress):
                    return self._control.release(known.peer, address.lease, reason, timeout_s)
                self._control.cancel_stream(known.peer, address.stream, reason)
                return True
            except KVFerryError as error:
                logger.info("could not end %s at %s: %s", address, endpoint, error)
                return False

        return release

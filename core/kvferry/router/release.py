"""Gives a prefill lease back when no decode server took it, so that its blocks are free at once.

A lease that is not given back ends by itself; this only makes it sooner. It never fails a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, TypeVar

from kvferry.config import TransferOptions
from kvferry.errors import ConfigError, InvalidArgumentError, KVFerryError
from kvferry.router.metrics import RouterMetrics

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT_S = 5.0
T = TypeVar("T")
ReleaseReason = Literal["rejected", "aborted"]
# Takes a prefill server's `kv_transfer_params`; says whether the lease was still held.
ReleaseFunction = Callable[[Mapping[str, Any], ReleaseReason], Awaitable[bool]]


class NativeReleaser:
    """Releases over a transfer engine of the router's own, which holds no memory and only sends messages."""

    def __init__(self, transfer: TransferOptions) -> None:
        # Not needed by a router without prefill servers, and not there where the native module is missing.
        from kvferry.handoff import LeaseReleaser
        from kvferry.transfer import Engine

        self._engine = Engine(transfer)
        try:
            # Without a cluster secret the engines are on this host, and no other is contacted.
            allow_remote = bool(transfer.cluster_secret or transfer.cluster_secret_file)
            self._releaser = LeaseReleaser(self._engine, allow_remote=allow_remote)
        except BaseException:
            self._engine.close()
            raise

    async def release(self, params: Mapping[str, Any], reason: ReleaseReason) -> bool:
        """Give a lease back; see `kvferry.handoff.LeaseReleaser.release_lease`."""
        return await self._releaser.release_lease(params, reason)

    def close(self) -> None:
        """Stop its threads and connections."""
        self._releaser.close()
        self._engine.close()


def open_native_releaser(transfer: TransferOptions) -> NativeReleaser | None:
    """Return a releaser, or None, with a warning, where the native engine cannot run.

    Raises `ConfigError` if it refuses the settings: with those the engines could not run either.
    """
    try:
        return NativeReleaser(transfer)
    except InvalidArgumentError as error:
        raise ConfigError(
            f"the transfer settings are invalid: {error} (`kvferry doctor` names their source)"
        ) from error
    except (ImportError, KVFerryError) as error:
        logger.warning("unused prefill blocks will be freed by the end of their lease only: %s", error)
        return None


class Releaser:
    """Runs releases in the background of one event loop, each with a deadline."""

    def __init__(self, function: ReleaseFunction | None, metrics: RouterMetrics) -> None:
        self._function = function
        self._metrics = metrics
        self._tasks: set[asyncio.Task[Any]] = set()

    def release(self, params: Mapping[str, Any], reason: ReleaseReason) -> None:
        """Start giving back the lease named in a prefill server's `kv_transfer_params`, or ending the stream
        named in a decode server's."""
        if self._function is None:
            self._metrics.count("releases", reason, "unsupported")
            return
        self.spawn(self._release(self._function, params, reason))

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that outlives its request, or ends with it; it is waited for on shutdown."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self, timeout_s: float) -> None:
        """Wait for what is running, and what that starts, then cancel the rest; at most twice as long."""
        deadline = time.monotonic() + timeout_s
        while self._tasks and (left_s := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
        late = list(self._tasks)
        for task in late:
            task.cancel()
        if late and (await asyncio.wait(late, timeout=timeout_s))[1]:
            logger.error("releases do not end although they were cancelled; left behind")

    async def _release(
        self, function: ReleaseFunction, params: Mapping[str, Any], reason: ReleaseReason
    ) -> None:
        try:
            held = await asyncio.wait_for(function(params, reason), RELEASE_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  (whatever went wrong, the lease's end is the net)
            self._metrics.count("releases", reason, "failed")
            logger.warning(
                "prefill blocks at %s:%s could not be given back and stay until their lease ends: %s",
                params.get("remote_host"),
                params.get("remote_port"),
                str(error) or type(error).__name__,
            )
        else:
            self._metrics.count("releases", reason, "released" if held else "not_held")

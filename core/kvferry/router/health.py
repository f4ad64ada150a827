"""The active half of health checking: asks every engine's `/health` at an interval."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kvferry.router.instances import Instance, Pool
from kvferry.router.upstream import Trouble, Upstream, UpstreamError

logger = logging.getLogger(__name__)

# An engine that is down is asked this often, so that it is used within moments of coming back.
RECOVERY_INTERVAL_S = 0.5
# A busy engine may miss a probe; two in a row, or a refused connection, mean that it is down.
MISSES_BEFORE_DOWN = 2
# What a probe under way may take to end once it was told to.
STOP_S = 5.0
LOOP_DETECTED = 508
LOOP_MESSAGE = (
    "the request came back to the router that sent it: one of its prefill or decode URLs leads to the router "
    "itself. Give the engines' own URLs to --prefill and --decode."
)


class Prober:
    """Keeps one probing task per instance. Belongs to one event loop."""

    def __init__(self, pool: Pool, upstream: Upstream, interval_s: float, timeout_s: float) -> None:
        self._pool = pool
        self._upstream = upstream
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._tasks: list[asyncio.Task[None]] = []
        self._unasked: set[Instance] = set()
        self._all_asked = asyncio.Event()
        self._stopping = False

    def start(self) -> None:
        """Start probing; every instance is asked at once and then at the interval."""
        self._stopping = False
        self._unasked = set(self._pool)
        self._tasks = [asyncio.create_task(self._watch(instance)) for instance in self._pool]

    async def first_round(self) -> None:
        """Wait until every instance has answered, or failed to answer, its first probe."""
        await self._all_asked.wait()

    async def stop(self) -> None:
        """End all probing; takes no longer than `STOP_S`."""
        # The word that ends them: a cancellation can meet a wait that has just ended, and be lost in it.
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=STOP_S)
            if left:
                logger.error("%d health probes did not end within %g s; left behind", len(left), STOP_S)
        self._tasks = []

    async def _watch(self, instance: Instance) -> None:
        misses = 0
        while not self._stopping:
            instance.probe_wanted.clear()
            error, certain = await self._probe(instance)
            misses = misses + 1 if error else 0
            if error is None or certain or misses >= MISSES_BEFORE_DOWN:
                self._note(instance, error)
            self._unasked.discard(instance)
            if not self._unasked:
                self._all_asked.set()
            settled = instance.usable and misses == 0
            await self._pause(instance, self._interval_s if settled else RECOVERY_INTERVAL_S)

    async def _pause(self, instance: Instance, seconds: float) -> None:
        # A failing request asks for a probe now; the short sleep keeps many of them from becoming a storm.
        await asyncio.sleep(min(seconds, RECOVERY_INTERVAL_S) / 10)
        wait_s = seconds if instance.usable else min(seconds, RECOVERY_INTERVAL_S)
        # Not wait_for(): before Python 3.12 it loses a cancellation that comes as the event is set.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await instance.probe_wanted.wait()

    async def _probe(self, instance: Instance) -> tuple[str | None, bool]:
        """Return what is wrong (None: nothing) and whether that is certain."""
        try:
            status, _, _ = await self._upstream.get(instance, "/health", {}, self._timeout_s)
        except UpstreamError as error:
            return str(error), error.trouble is Trouble.UNREACHABLE
        except Exception as error:
            # A bug must not end the watch: a server that is down would then never be used again.
            logger.exception("the health probe of %s failed unexpectedly", instance.name)
            return f"{type(error).__name__}: {error}", False
        if status == 200:
            return None, True
        if status == LOOP_DETECTED:
            return f"{instance.name}/health answered {status}: {LOOP_MESSAGE}", True
        return f"{instance.name}/health answered {status}", True

    def _note(self, instance: Instance, error: str | None) -> None:
        if not instance.probed(error):
            return
        if error is None:
            logger.info("%s server %s is back", instance.role.value, instance.name)
        else:
            logger.warning("%s server %s is down: %s", instance.role.value, instance.name, error)

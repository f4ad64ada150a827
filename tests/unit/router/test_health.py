"""The prober's end: whatever it is waiting for, and whatever happens at that moment."""

from __future__ import annotations

import asyncio
import time

import pytest

from kvferry.router.health import Prober
from kvferry.router.instances import Pool
from kvferry.router.upstream import Upstream
from kvferry.testing.fake_openai import FakeServer, Leases


@pytest.mark.parametrize("turns", range(6))
async def test_stopping_while_a_probe_is_asked_for_ends_the_watch(turns: int) -> None:
    """A request that fails asks for a probe; a router that is stopped just then hung for ever."""
    server = FakeServer(Leases())
    await server.start()
    upstream = Upstream(5.0)
    pool = Pool((), (server.url,), time.monotonic)
    prober = Prober(pool, upstream, 60.0, 5.0)
    try:
        prober.start()
        await asyncio.wait_for(prober.first_round(), 20)
        (watch,) = prober._tasks
        async with asyncio.timeout(20):
            while not _waits_in(watch) & {"wait", "wait_for"}:
                await asyncio.sleep(0.01)
        pool.decode[0].probe_wanted.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(prober.stop(), 20)
        assert watch.done()
    finally:
        await upstream.close()
        await server.stop()


def _waits_in(task: asyncio.Task[None]) -> set[str]:
    """The coroutines that a task is suspended in."""
    names, inner = set(), task.get_coro()
    while inner is not None and hasattr(inner, "cr_code"):
        names.add(inner.cr_code.co_name)
        inner = inner.cr_await
    return names

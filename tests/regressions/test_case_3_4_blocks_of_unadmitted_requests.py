"""Field case 3.4 (vllm-project/vllm#41269, #50425): requests that decode never admits strand blocks."""

from __future__ import annotations

import asyncio
import contextlib

from kvferry.testing.fake_openai import Behaviour
from kvferry.testing.router_cluster import RouterCluster


async def test_blocks_are_free_at_once_whoever_refuses_or_leaves() -> None:
    async with RouterCluster(decode=2) as cluster:
        hold = asyncio.Event()

        async def client_leaves() -> None:
            task = asyncio.create_task(cluster.complete())
            async with asyncio.timeout(20):
                while not cluster.leases.open:
                    await asyncio.sleep(0.001)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        for number in range(100):
            for engine in cluster.decode:
                engine.behaviour = (Behaviour(status=400), Behaviour(status=404), Behaviour(hold=hold))[
                    number % 3
                ]
            if number % 3 == 2:
                await client_leaves()
            else:
                assert (await cluster.complete())[0] in (400, 404)
            async with asyncio.timeout(20):  # these leases never end by themselves
                while cluster.leases.open:
                    await asyncio.sleep(0.001)
        assert len(cluster.leases.released) == 100

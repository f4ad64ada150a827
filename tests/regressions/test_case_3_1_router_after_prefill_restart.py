"""Field case 3.1 (sgl-project/sglang#6215): a prefill server restarted on its port is used again."""

from __future__ import annotations

import asyncio

from kvferry.testing.router_cluster import RouterCluster


async def test_at_most_the_first_request_after_a_restart_falls_back() -> None:
    async with RouterCluster(health_interval_s=120) as cluster:
        assert (await cluster.complete())[0] == 200
        for _ in range(5):
            await cluster.prefill[0].stop()
            await cluster.prefill[0].start()
            served = len(cluster.prefill[0].calls)
            assert (await cluster.complete())[0] == 200
            assert (await cluster.complete())[0] == 200
            assert len(cluster.prefill[0].calls) >= served + 1
            assert len(cluster.leases.loaded) == cluster.metric("prefill_total", outcome="handed_off")


async def test_requests_during_the_gap_are_served_and_the_server_is_found_again() -> None:
    async with RouterCluster(health_interval_s=120) as cluster:
        await cluster.prefill[0].stop()
        for _ in range(3):
            assert (await cluster.complete())[0] == 200
        await cluster.prefill[0].start()
        for _ in range(200):
            assert (await cluster.complete())[0] == 200
            if cluster.prefill[0].calls:
                break
            await asyncio.sleep(0.01)
        assert cluster.prefill[0].calls

"""Field case 2.1 (kvcache-ai/Mooncake#470): IPv6 literals have to work everywhere, with no switch."""

from __future__ import annotations

from _engines import ipv6_works
from kvferry.testing.fake_openai import token_events
from kvferry.testing.router_cluster import RouterCluster


async def test_router_and_engines_on_ipv6() -> None:
    assert ipv6_works(), "this host has no IPv6 loopback: enable it (sysctl net.ipv6.conf.lo.disable_ipv6=0)"
    async with RouterCluster(host="::1") as cluster:
        assert cluster.router.url.startswith("http://[::1]:")
        assert await cluster.complete(stream=True) == (200, b"".join(token_events(4)))
        assert cluster.leases.loaded == ["lease-1"]
        assert (await cluster.get("/health"))[0] == 200

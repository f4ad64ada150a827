"""Field case 2.1 (kvcache-ai/Mooncake#470): IPv6 literals have to work everywhere, with no switch."""

from __future__ import annotations

import socket

import pytest

from kvferry.testing.fake_openai import token_events
from kvferry.testing.router_cluster import RouterCluster


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6 loopback address")
async def test_router_and_engines_on_ipv6() -> None:
    async with RouterCluster(host="::1") as cluster:
        assert cluster.router.url.startswith("http://[::1]:")
        assert await cluster.complete(stream=True) == (200, b"".join(token_events(4)))
        assert cluster.leases.loaded == ["lease-1"]
        assert (await cluster.get("/health"))[0] == 200

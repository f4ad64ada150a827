"""A router whose servers' URLs lead back to itself must notice it instead of calling itself without end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from kvferry.config.schema import RouterOptions
from kvferry.router import RouterServer
from kvferry.testing.fake_openai import Leases
from kvferry.testing.router_cluster import RouterCluster, request_body


@asynccontextmanager
async def running(
    port: int, prefill: tuple[str, ...], decode: tuple[str, ...]
) -> AsyncIterator[RouterServer]:
    options = RouterOptions(port=port, prefill=prefill, decode=decode, request_timeout_s=10)
    router = RouterServer(options, release_lease=Leases().release)
    await router.start()
    try:
        await asyncio.wait_for(router.core.prober.first_round(), 60)
        yield router
    finally:
        await router.stop(0)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def complete(router: RouterServer) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(router.url + "/v1/completions", data=request_body()) as response,
    ):
        answer = await response.json()
        return response.status, answer.get("error", {}).get("message", "")


def received(router: RouterServer) -> float:
    registry = router.core.metrics.registry
    return registry.value("kvferry_router_requests_received_total", endpoint="/v1/completions")


async def test_a_router_that_is_its_own_server_says_so() -> None:
    port = free_port()
    itself = (f"http://127.0.0.1:{port}",)
    async with running(port, itself, itself) as router:
        for one in router.core.pool:
            assert (one.state, "leads to the router itself" in one.last_error) == ("down", True)
        status, message = await complete(router)
        assert status == 508
        assert "leads to the router itself. Give the engines' own URLs" in message
        assert received(router) == 1  # what came back was refused before it counted
        async with aiohttp.ClientSession() as client, client.get(router.url + "/health") as response:
            page = await response.json()
            assert (response.status, "leads to the router itself" in page["reasons"][0]) == (503, True)
        async with aiohttp.ClientSession() as client, client.get(router.url + "/v1/models") as response:
            assert response.status == 508


async def test_two_routers_in_a_circle_end_it_after_one_round() -> None:
    ports = [free_port(), free_port()]
    first, second = (f"http://127.0.0.1:{port}" for port in ports)
    async with running(ports[0], (), (second,)) as one, running(ports[1], (), (first,)) as other:
        status, message = await complete(one)
        assert (status, "came back to the router" in message) == (508, True)
        assert [received(one), received(other)] == [1, 1]


@pytest.mark.parametrize("sent", [None, "1.1 proxy.example (some, comment), HTTP/2 kvferry-0123456789abcdef"])
async def test_other_intermediaries_are_kept_and_not_refused(sent: str | None) -> None:
    async with RouterCluster() as cluster:
        assert (await cluster.complete(headers={} if sent is None else {"Via": sent}))[0] == 200
        own = f"1.1 {cluster.router.core.upstream.via}"
        for engine in (cluster.prefill[0], cluster.decode[0]):
            assert engine.calls[0].headers["Via"] == (own if sent is None else f"{sent}, {own}")


async def test_the_error_is_what_openai_clients_understand() -> None:
    async with RouterCluster() as cluster:
        via = f"1.1 proxy, HTTP/1.1 {cluster.router.core.upstream.via} (again)"
        status, body = await cluster.complete(headers={"Via": via})
        error = json.loads(body)["error"]
        assert (status, error["code"], error["type"]) == (508, 508, "LoopDetectedError")
        assert cluster.prefill[0].calls == cluster.decode[0].calls == []

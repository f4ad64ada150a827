"""Leases given back for real: over the router's own transfer engine, to a prefill engine's lease table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from kvferry.config import RouterOptions, TransferOptions
from kvferry.errors import ConfigError, UnavailableError
from kvferry.handoff import (
    ControlClient,
    LeaseAddress,
    LeaseIssuer,
    LeaseTable,
    MessageLoop,
    RemotePrefill,
    build_remote_prefill,
)
from kvferry.router import RouterServer
from kvferry.router.release import open_native_releaser
from kvferry.testing.fake_openai import Behaviour, FakeServer, Leases
from kvferry.testing.router_cluster import LONGEST_WAIT_S, request_body
from kvferry.transfer import Engine


class Producer:
    """The lease-keeping half of a prefill engine."""

    def __init__(self) -> None:
        self.engine = Engine(TransferOptions())
        self.table = LeaseTable(30.0)
        self.issuer = LeaseIssuer()
        self.loop = MessageLoop(self.engine, table=self.table, control=ControlClient(self.engine))
        self.loop.start()

    def grant(self, role_url: str) -> dict[str, Any]:
        lease = self.issuer.issue()
        self.table.admit(self.issuer.authority, self.issuer.issued_through, [(lease, "request")])
        endpoint = str(self.engine.endpoint)
        address = LeaseAddress(lease=lease, node_ids=(self.engine.node_id,), endpoints=(endpoint,))
        remote = RemotePrefill(address=address, block_ids=((1, 2),), num_tokens=32)
        return build_remote_prefill(remote, host="127.0.0.1", port=1)

    def close(self) -> None:
        self.loop.close()
        self.engine.close()


@pytest.fixture
def producer() -> Iterator[Producer]:
    made = Producer()
    yield made
    made.close()


async def test_a_refused_request_frees_the_prefill_engines_blocks_at_once(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Leases()
    monkeypatch.setattr(leases, "grant", producer.grant)
    p, d = FakeServer(leases), FakeServer(leases)
    for server in (p, d):
        await server.start()
    d.behaviour = Behaviour(status=400)
    router = RouterServer(RouterOptions(port=0, handoff="pull", prefill=(p.url,), decode=(d.url,)))
    await router.start()
    try:
        async with aiohttp.ClientSession() as client:
            for number in range(3):
                async with client.post(router.url + "/v1/completions", data=request_body()) as response:
                    assert response.status == 400
                refused_at = time.monotonic()
                while not producer.table.take_ended():  # its lease would end by itself after 30 s
                    assert time.monotonic() - refused_at < 25.0, f"lease {number} is still held"
                    await asyncio.sleep(0.005)
        registry = router.core.metrics.registry
        labels = {"reason": "rejected", "outcome": "released"}
        # The router counts a release when its answer has come, which is after the blocks are free.
        async with asyncio.timeout(LONGEST_WAIT_S):
            while registry.value("kvferry_router_releases_total", **labels) < 3:
                await asyncio.sleep(0.005)
        assert registry.value("kvferry_router_releases_total", **labels) == 3
    finally:
        await router.stop(0)
        for server in (p, d):
            await server.stop()


def test_a_router_without_the_native_engine_says_what_that_means(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("no memory to lock")

    monkeypatch.setattr("kvferry.transfer.Engine", refuse)
    assert open_native_releaser(TransferOptions()) is None
    assert "freed by the end of their lease only: no memory to lock" in caplog.text


async def test_a_router_does_not_start_with_settings_that_its_engine_refuses() -> None:
    router = RouterServer(
        RouterOptions(port=0, prefill=("http://127.0.0.1:1",), decode=("http://127.0.0.1:1",)),
        TransferOptions(bind="0.0.0.0:0"),
    )
    with pytest.raises(ConfigError, match=r"transfer settings are invalid: bind .* set cluster_secret"):
        await router.start()
    await router.stop()

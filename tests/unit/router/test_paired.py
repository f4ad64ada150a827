"""SGLang's servers: both get a request at once, and find each other by the fields that the router adds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from kvferry.config.schema import RouterOptions
from kvferry.errors import ConfigError
from kvferry.router import RouterServer
from kvferry.testing.fake_openai import Behaviour, FakeServer
from kvferry.testing.router_cluster import LONGEST_WAIT_S, RouterCluster

ADDED = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


def pair(prefill: int = 1, decode: int = 1, **options: object) -> RouterCluster:
    return RouterCluster(prefill, decode, engine="sglang", **options)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONGEST_WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def added(server: FakeServer, call: int = -1) -> dict[str, object]:
    return {name: server.calls[call].body[name] for name in ADDED}


async def test_both_servers_get_the_same_body_with_the_same_room() -> None:
    async with pair(bootstrap_ports=("4711",)) as cluster:
        status, body = await cluster.complete(seed=7, stream=False)
        assert status == 200
        assert json.loads(body)["usage"]["completion_tokens"] == 4
        (prefill,), (decode,) = cluster.prefill, cluster.decode
        assert prefill.calls[0].raw == decode.calls[0].raw
        assert added(prefill)["bootstrap_host"] == "127.0.0.1"
        assert added(prefill)["bootstrap_port"] == 4711
        assert 0 <= int(str(added(prefill)["bootstrap_room"])) < 1 << 62
        assert cluster.leases.met == [added(decode)["bootstrap_room"]]
        assert cluster.metric("prefill_total", outcome="handed_off") == 1


async def test_each_request_has_a_room_of_its_own_and_sglangs_default_port() -> None:
    async with pair() as cluster:
        answers = await asyncio.gather(*(cluster.complete() for _ in range(8)))
        assert [status for status, _ in answers] == [200] * 8
        assert len(set(cluster.leases.met)) == 8
        assert added(cluster.prefill[0])["bootstrap_port"] == 8998


async def test_streams_come_from_the_decode_server() -> None:
    async with pair() as cluster:
        cluster.prefill[0].behaviour = Behaviour(chunks=[b"data: not this\n\n"])
        status, body = await cluster.complete(stream=True)
        assert status == 200
        assert body.count(b"data: ") == 5
        assert b"not this" not in body


async def test_requests_that_vllm_cannot_split_are_split_too() -> None:
    async with pair() as cluster:
        assert (await cluster.complete(n=2))[0] == 200
        assert len(cluster.prefill[0].calls) == 1


async def test_the_requests_of_one_room_go_to_the_port_of_their_prefill_server() -> None:
    async with pair(prefill=2, bootstrap_ports=("1001", "1002")) as cluster:
        for _ in range(4):
            assert (await cluster.complete())[0] == 200
        for server, port in zip(cluster.prefill, (1001, 1002), strict=True):
            assert {added(server, call)["bootstrap_port"] for call in range(len(server.calls))} == {port}
            assert len(server.calls) == 2


@pytest.mark.parametrize("name", ADDED)
async def test_clients_may_not_say_whom_an_engine_is_to_contact(name: str) -> None:
    async with pair() as cluster:
        status, body = await cluster.complete(**{name: 1})
        assert status == 400
        assert name in body.decode()
        assert cluster.prefill[0].calls == cluster.decode[0].calls == []


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_a_prefill_server_that_refuses_ends_the_request_at_once(status: int) -> None:
    async with pair() as cluster:
        cluster.prefill[0].behaviour = Behaviour(status=status)
        assert (await cluster.complete())[0] == status
        await until(lambda: all(call.ended.is_set() for call in cluster.decode[0].calls))
        assert all(call.aborted for call in cluster.decode[0].calls)
        assert cluster.metric("prefill_total", outcome="failed") == 1
        cluster.prefill[0].behaviour = Behaviour()
        assert (await cluster.complete())[0] == 200


async def test_a_prefill_server_that_dies_ends_the_request_at_once() -> None:
    async with pair() as cluster:
        cluster.prefill[0].behaviour = Behaviour(drop=True)
        status, body = await cluster.complete()
        assert status == 502
        assert "prefill server" in body.decode()
        assert cluster.metric("failures_total", reason="prefill_lost") == 1


async def test_a_prefill_server_that_is_gone_is_replaced() -> None:
    async with pair(prefill=2, health_interval_s=60.0) as cluster:
        await cluster.prefill[0].stop()
        for _ in range(3):
            assert (await cluster.complete())[0] == 200
        assert cluster.prefill[0].calls == []


async def test_without_a_prefill_server_the_answer_says_so() -> None:
    async with pair() as cluster:
        await cluster.prefill[0].stop()
        status, body = await cluster.complete()
        assert status == 503
        assert "no prefill server can be reached" in body.decode()


async def test_a_decode_server_that_is_gone_is_replaced_in_the_same_room() -> None:
    async with pair(decode=2, health_interval_s=60.0) as cluster:
        await cluster.decode[0].stop()
        for _ in range(2):
            assert (await cluster.complete())[0] == 200
        assert cluster.decode[0].calls == []
        assert len(cluster.decode[1].calls) == 2


@pytest.mark.parametrize("behaviour", [Behaviour(status=500), Behaviour(drop=True)])
async def test_a_decode_server_that_fails_ends_the_prefill(behaviour: Behaviour) -> None:
    async with pair() as cluster:
        cluster.prefill[0].behaviour = Behaviour(hold=asyncio.Event())
        cluster.decode[0].behaviour = behaviour
        status, _ = await cluster.complete()
        assert status == (500 if behaviour.status == 500 else 502)
        await until(lambda: all(call.ended.is_set() for call in cluster.prefill[0].calls))
        assert [call.aborted for call in cluster.prefill[0].calls] == [True]


async def test_a_client_that_leaves_ends_both() -> None:
    async with pair() as cluster:
        cluster.prefill[0].behaviour = Behaviour(hold=asyncio.Event())
        asked = asyncio.create_task(cluster.complete())
        await cluster.prefill[0].wait_for_calls(1)
        await cluster.decode[0].wait_for_calls(1)
        asked.cancel()
        for server in (cluster.prefill[0], cluster.decode[0]):
            await until(server.calls[0].ended.is_set)
            assert server.calls[0].aborted


async def test_a_prefill_that_takes_too_long_ends_the_request() -> None:
    async with pair(prefill_timeout_s=0.1) as cluster:
        cluster.prefill[0].behaviour = Behaviour(hold=asyncio.Event())
        status, body = await cluster.complete()
        assert status == 502
        assert "no answer within 0.1 s" in body.decode()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bootstrap_ports": ("1", "2")}, "2 ports and router.prefill 1 servers"),
        ({"engine": "vllm", "bootstrap_ports": ("1",)}, "set router.engine to sglang"),
        ({"bootstrap_ports": ("http",)}, "'http', which is no port number"),
        ({"bootstrap_ports": ("65536",)}, "no port number"),
        ({"prefill": ()}, "give --prefill"),
        ({"prefill_events": ("ipc:///x",)}, "leave it out"),
        ({"encode": ("http://127.0.0.1:3",)}, "leave it out"),
        ({"handoff": "pull"}, "always get the request together"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(options: dict[str, object], text: str) -> None:
    urls = {"prefill": ("http://127.0.0.1:1",), "decode": ("http://127.0.0.1:2",)}
    with pytest.raises(ConfigError, match=text):
        RouterServer(RouterOptions(**{"engine": "sglang", **urls, **options}))  # type: ignore[arg-type]

"""The prefill and the decode server get a request at once, as soon as the router knows where to point."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvferry.router import streaming
from kvferry.testing.fake_openai import Behaviour, FakeServer
from kvferry.testing.router_cluster import LONGEST_WAIT_S, RouterCluster, request_body


async def until(condition) -> None:
    async with asyncio.timeout(LONGEST_WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def streaming_cluster(decode: int = 1, **options: object) -> AsyncIterator[RouterCluster]:
    """A cluster whose prefill server has answered once, so that its address is known."""
    async with RouterCluster(prefill=1, decode=decode, **options) as cluster:
        cluster.prefill[0].node_id = secrets.token_hex(16)
        for server in cluster.decode:
            server.prefill = cluster.prefill[0]
        assert (await cluster.complete())[0] == 200
        assert cluster.metric("prefill_total", outcome="handed_off") == 1
        yield cluster
        await until(cluster.prefill[0].calls[-1].ended.is_set)
        assert cluster.leases.open == set()


def params_of(server: FakeServer, call: int = -1) -> dict[str, object]:
    return dict(server.calls[call].body.get("kv_transfer_params") or {})


async def test_both_get_the_request_at_once() -> None:
    async with streaming_cluster() as cluster:
        (prefill,), (decode,) = cluster.prefill, cluster.decode
        prefill.behaviour = Behaviour(hold=asyncio.Event())
        asked = asyncio.create_task(cluster.complete())
        await decode.wait_for_calls(2)
        await prefill.wait_for_calls(2)
        to_prefill, to_decode = params_of(prefill), params_of(decode)
        assert to_prefill["do_remote_decode"] is True
        assert to_decode["do_remote_prefill"] is True
        assert to_decode["kvferry"]["stream"] == to_prefill["kvferry"]["stream"]
        assert to_decode["kvferry"]["node_ids"] == [prefill.node_id]
        prefill.behaviour.hold.set()
        assert (await asked)[0] == 200
        await until(lambda: cluster.metric("prefill_total", outcome="streamed") == 1)
        assert cluster.leases.followed == [to_decode["kvferry"]["stream"]]
        assert cluster.leases.cancelled == []


async def test_each_request_is_a_stream_of_its_own() -> None:
    async with streaming_cluster() as cluster:
        answers = await asyncio.gather(*(cluster.complete() for _ in range(8)))
        assert [status for status, _ in answers] == [200] * 8
        assert len(set(cluster.leases.followed)) == 8


@pytest.mark.parametrize("behaviour", [Behaviour(status=500), Behaviour(status=400), Behaviour(drop=True)])
async def test_a_prefill_that_fails_is_told_to_the_decode_server_at_once(behaviour: Behaviour) -> None:
    async with streaming_cluster() as cluster:
        cluster.prefill[0].behaviour = behaviour
        assert (await cluster.complete())[0] == 200  # it waits for the stream's end, which is the message
        assert [reason for _, reason in cluster.leases.cancelled] == ["aborted"]
        assert cluster.metric("prefill_total", outcome="fallback") == 1
        assert len(cluster.prefill[0].calls) == 2
        assert len(cluster.decode[0].calls) == 2


async def test_a_restarted_prefill_server_costs_one_fallback() -> None:
    async with streaming_cluster() as cluster:
        cluster.prefill[0].node_id = secrets.token_hex(16)
        for status in [(await cluster.complete())[0] for _ in range(3)]:
            assert status == 200
        await until(lambda: cluster.metric("prefill_total", outcome="streamed") == 2)
        assert cluster.metric("prefill_fallbacks_total", reason="stale_address") == 1
        await until(lambda: len(cluster.leases.released) == 1)
        assert len(cluster.leases.followed) == 2


async def test_a_server_that_is_down_is_forgotten() -> None:
    async with streaming_cluster() as cluster:
        await cluster.prefill[0].stop()
        await until(lambda: not cluster.router.core.pool.prefill[0].usable)
        await cluster.prefill[0].start()
        await until(lambda: cluster.router.core.pool.prefill[0].usable)
        assert (await cluster.complete())[0] == 200
        assert "stream" not in params_of(cluster.decode[0])["kvferry"]
        assert (await cluster.complete())[0] == 200
        assert "stream" in params_of(cluster.decode[0])["kvferry"]


async def test_the_client_leaves() -> None:
    async with streaming_cluster() as cluster:
        (prefill,), (decode,) = cluster.prefill, cluster.decode
        prefill.behaviour = decode.behaviour = Behaviour(hold=asyncio.Event())
        asked = asyncio.create_task(cluster.complete())
        await decode.wait_for_calls(2)
        await prefill.wait_for_calls(2)
        asked.cancel()
        for server in (prefill, decode):
            await asyncio.wait_for(server.calls[-1].ended.wait(), LONGEST_WAIT_S)
            assert server.calls[-1].aborted
        await until(lambda: [reason for _, reason in cluster.leases.cancelled] == ["aborted"])


async def test_the_decode_server_refuses() -> None:
    async with streaming_cluster() as cluster:
        (prefill,), (decode,) = cluster.prefill, cluster.decode
        prefill.behaviour = Behaviour(hold=asyncio.Event())
        decode.behaviour = Behaviour(status=400, hold=asyncio.Event())
        asked = asyncio.create_task(cluster.complete())
        await prefill.wait_for_calls(2)
        decode.behaviour.hold.set()
        assert (await asked)[0] == 400
        await asyncio.wait_for(prefill.calls[-1].ended.wait(), LONGEST_WAIT_S)
        assert prefill.calls[-1].aborted
        await until(lambda: [reason for _, reason in cluster.leases.cancelled] == ["rejected"])


async def test_the_decode_server_is_lost_and_another_one_answers_alone() -> None:
    async with streaming_cluster(decode=2) as cluster:
        (prefill,) = cluster.prefill
        used = next(server for server in cluster.decode if not server.calls)  # its turn is next
        other = next(server for server in cluster.decode if server is not used)
        prefill.behaviour = Behaviour(hold=asyncio.Event())
        used.behaviour = Behaviour(drop=True, hold=asyncio.Event())
        asked = asyncio.create_task(cluster.complete())
        await prefill.wait_for_calls(2)
        used.behaviour.hold.set()
        assert (await asked)[0] == 200
        assert params_of(other) == {}
        assert len(prefill.calls) == 2  # nothing is asked for twice
        await asyncio.wait_for(prefill.calls[-1].ended.wait(), LONGEST_WAIT_S)
        assert prefill.calls[-1].aborted


async def test_a_decode_server_that_cannot_be_reached_leaves_the_stream_to_another() -> None:
    async with streaming_cluster(decode=2, health_interval_s=600) as cluster:
        gone = next(server for server in cluster.decode if not server.calls)
        other = next(server for server in cluster.decode if server is not gone)
        await gone.stop()
        assert (await cluster.complete())[0] == 200
        await until(lambda: cluster.metric("prefill_total", outcome="streamed") == 1)
        assert cluster.leases.followed == [params_of(other)["kvferry"]["stream"]]
        assert len(cluster.prefill[0].calls) == 2


async def test_a_prefill_that_is_not_needed_any_more_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "WIND_UP_S", 0.01)
    async with streaming_cluster() as cluster:
        cluster.prefill[0].behaviour = Behaviour(hold=asyncio.Event())
        cluster.decode[0].prefill = None  # it finds all of the prompt in its own cache
        assert (await cluster.complete())[0] == 200
        await asyncio.wait_for(cluster.prefill[0].calls[-1].ended.wait(), LONGEST_WAIT_S)
        assert cluster.prefill[0].calls[-1].aborted
        await until(lambda: len(cluster.leases.cancelled) == 1)


async def test_several_engines_behind_one_url_are_not_guessed_for_ever() -> None:
    async with streaming_cluster() as cluster:
        for _ in range(6):
            cluster.prefill[0].node_id = secrets.token_hex(16)
            assert (await cluster.complete())[0] == 200
        assert cluster.metric("prefill_fallbacks_total", reason="stale_address") == 3
        assert cluster.metric("prefill_total", outcome="handed_off") == 4


async def test_pull_mode_can_be_kept() -> None:
    async with streaming_cluster(handoff="pull") as cluster:
        assert (await cluster.complete())[0] == 200
        assert cluster.metric("prefill_total", outcome="handed_off") == 2
        assert "stream" not in params_of(cluster.decode[0])["kvferry"]


async def test_streamed_answers() -> None:
    async with streaming_cluster() as cluster:
        body = request_body(stream=True)
        async with cluster.client.post(cluster.router.url + "/v1/completions", data=body) as response:
            assert response.status == 200
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert len(cluster.leases.followed) == 1

"""A client that goes away: the engine that works for it stops, and no blocks stay behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import pytest

from kvferry.testing.fake_openai import Behaviour, FakeServer, token_events
from kvferry.testing.router_cluster import LONGEST_WAIT_S, RouterCluster, request_body


async def settled(cluster: RouterCluster) -> None:
    """Wait until the router has nothing in flight and no lease is left."""
    async with asyncio.timeout(LONGEST_WAIT_S):
        while cluster.metric("requests_in_flight", endpoint="/v1/completions") or cluster.leases.open:
            await asyncio.sleep(0.005)


async def cancel(task: asyncio.Task[tuple[int, bytes]]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("stream", [False, True])
async def test_gone_during_prefill(stream: bool) -> None:
    async with RouterCluster() as cluster:
        cluster.prefill[0].behaviour = Behaviour(hold=asyncio.Event())
        task = asyncio.create_task(cluster.complete(stream=stream))
        call = await cluster.prefill[0].wait_for_calls(1)
        await cancel(task)
        await asyncio.wait_for(call.ended.wait(), LONGEST_WAIT_S)
        await settled(cluster)
        assert call.aborted
        assert cluster.decode[0].calls == []
        assert cluster.metric("cancellations_total", phase="prefill") == 1
        assert cluster.metric("prefill_total", outcome="handed_off") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_gone_while_decode_has_not_answered(stream: bool) -> None:
    async with RouterCluster() as cluster:
        cluster.decode[0].behaviour = Behaviour(hold=asyncio.Event())
        task = asyncio.create_task(cluster.complete(stream=stream))
        call = await cluster.decode[0].wait_for_calls(1)
        assert cluster.leases.open == {"lease-1"}
        await cancel(task)
        await asyncio.wait_for(call.ended.wait(), LONGEST_WAIT_S)
        await settled(cluster)
        assert call.aborted
        assert cluster.leases.released == [("lease-1", "aborted")]
        assert cluster.metric("releases_total", reason="aborted", outcome="released") == 1
        assert cluster.metric("cancellations_total", phase="decode") == 1


async def test_gone_after_the_first_token() -> None:
    async with RouterCluster() as cluster:
        cluster.decode[0].behaviour = Behaviour(gates={1: asyncio.Event()})
        async with cluster.client.post(
            cluster.router.url + "/v1/completions", data=request_body(stream=True)
        ) as response:
            event = token_events(1)[0]
            assert await response.content.readexactly(len(event)) == event
            response.close()
        call = cluster.decode[0].calls[0]
        await asyncio.wait_for(call.ended.wait(), LONGEST_WAIT_S)
        await settled(cluster)
        assert call.aborted
        assert (cluster.leases.loaded, cluster.leases.released) == (["lease-1"], [])
        assert cluster.metric("cancellations_total", phase="streaming") == 1
        labels = {"role": "decode", "backend": cluster.decode[0].url}
        assert cluster.metric("backend_requests_total", **labels, outcome="cancelled") == 1
        assert cluster.metric("backend_in_flight", **labels) == 0


async def test_gone_while_sending_the_body() -> None:
    async with RouterCluster() as cluster:
        _, writer = await asyncio.open_connection("127.0.0.1", cluster.router.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        await writer.drain()
        async with asyncio.timeout(LONGEST_WAIT_S):
            while not cluster.metric("requests_in_flight", endpoint="/v1/completions"):
                await asyncio.sleep(0.005)
        writer.close()
        await settled(cluster)
        assert cluster.metric("cancellations_total", phase="receiving") == 1
        assert cluster.prefill[0].calls == []


async def test_gone_while_writing_to_it_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with RouterCluster() as cluster:
        chunk = b"data: " + b"y" * 65_000 + b"\n\n"
        cluster.decode[0].behaviour = Behaviour(chunks=[chunk] * 200)
        _, writer = await asyncio.open_connection("127.0.0.1", cluster.router.port, limit=1024)
        body = request_body(stream=True)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        call = await cluster.decode[0].wait_for_calls(1)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.wait_for(call.ended.wait(), LONGEST_WAIT_S)
        await settled(cluster)
    assert [record.getMessage() for record in caplog.records] == []


async def late_prefill_server(engine: FakeServer, ready: asyncio.Event, go: asyncio.Event) -> asyncio.Server:
    """A prefill server in `engine`'s place that sends its answer's headers, and the body when told to."""
    params = engine.leases.grant("late")
    body = json.dumps({"choices": [], "kv_transfer_params": params}).encode()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            ready.set()
            await go.wait()
            writer.write(body)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    return await asyncio.start_server(talk, "127.0.0.1", engine.port)


async def test_gone_while_the_prefill_answer_arrives_still_frees_its_blocks() -> None:
    async with RouterCluster() as cluster:
        await cluster.prefill[0].stop()
        ready, go = asyncio.Event(), asyncio.Event()
        async with await late_prefill_server(cluster.prefill[0], ready, go):
            task = asyncio.create_task(cluster.complete())
            await asyncio.wait_for(ready.wait(), LONGEST_WAIT_S)
            await asyncio.sleep(0.02)
            await cancel(task)
            assert cluster.leases.open == {"lease-1"}
            go.set()
            await settled(cluster)
        assert cluster.leases.released == [("lease-1", "aborted")]
        assert cluster.decode[0].calls == []


async def test_a_release_that_fails_or_hangs_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.router.release.RELEASE_TIMEOUT_S", 0.1)
    async with RouterCluster() as cluster:
        cluster.decode[0].behaviour = Behaviour(status=400)

        async def hang(params: object, reason: str) -> bool:
            await asyncio.sleep(60)
            return True

        async def fail(params: object, reason: str) -> bool:
            raise ValueError("no such lease")

        for broken in (hang, fail):
            monkeypatch.setattr(cluster.router.core.releaser, "_function", broken)
            assert (await cluster.complete())[0] == 400
        failed = {"reason": "rejected", "outcome": "failed"}
        async with asyncio.timeout(LONGEST_WAIT_S / 2):  # the one that hangs takes a minute
            while cluster.metric("releases_total", **failed) < 2:
                await asyncio.sleep(0.005)
        assert cluster.metric("releases_total", **failed) == 2


async def test_without_the_native_engine_the_lease_is_left_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with RouterCluster() as cluster:
        monkeypatch.setattr(cluster.router.core.releaser, "_function", None)
        cluster.decode[0].behaviour = Behaviour(status=400)
        assert (await cluster.complete())[0] == 400
        assert cluster.metric("releases_total", reason="rejected", outcome="unsupported") == 1

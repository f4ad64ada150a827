"""Engines that are gone, slow or wrong: the client gets a right answer or a clear error."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.router.instances import Instance, Role, parse_base_url
from kvferry.router.upstream import Upstream, UpstreamError
from kvferry.testing.fake_openai import DONE_EVENT, Behaviour, token_events
from kvferry.testing.router_cluster import LONGEST_WAIT_S, RouterCluster

STREAM = b"".join(token_events(4))


def message(answer: bytes) -> str:
    text: str = json.loads(answer)["error"]["message"]
    return text


PREFILL_TROUBLES: dict[str, Callable[[], Behaviour]] = {
    "upstream_error": lambda: Behaviour(status=500),
    "rejected": lambda: Behaviour(status=400),
    "malformed": lambda: Behaviour(body=b"<html>"),
    "lost": lambda: Behaviour(drop=True),
    "no_handoff": lambda: Behaviour(hand_off=False),
    "timeout": lambda: Behaviour(hold=asyncio.Event()),
}


@pytest.mark.parametrize("reason", PREFILL_TROUBLES)
@pytest.mark.parametrize("stream", [False, True])
async def test_prefill_trouble_means_decode_alone(reason: str, stream: bool) -> None:
    async with RouterCluster(prefill_timeout_s=0.3) as cluster:
        cluster.prefill[0].behaviour = PREFILL_TROUBLES[reason]()
        status, answer = await cluster.complete(stream=stream)
        assert status == 200
        assert (answer == STREAM) if stream else json.loads(answer)["choices"]
        assert "kv_transfer_params" not in cluster.decode[0].calls[0].body
        assert cluster.metric("prefill_fallbacks_total", reason=reason) == 1
        assert cluster.metric("prefill_total", outcome="fallback") == 1
        assert cluster.metric("requests_total", endpoint="/v1/completions", outcome="done") == 1


async def test_prefill_server_that_is_not_there() -> None:
    async with RouterCluster() as cluster:
        await cluster.prefill[0].stop()
        assert (await cluster.complete())[0] == 200
        assert cluster.metric("prefill_fallbacks_total", reason="unreachable") == 1
        assert (await cluster.complete())[0] == 200  # now it is known to be down, and not asked again
        assert cluster.metric("prefill_fallbacks_total", reason="none_usable") == 1


async def test_another_prefill_server_takes_over_from_one_that_is_not_there() -> None:
    async with RouterCluster(prefill=2) as cluster:
        await cluster.prefill[0].stop()
        assert (await cluster.complete())[0] == 200
        assert len(cluster.prefill[1].calls) == 1
        assert cluster.metric("prefill_total", outcome="handed_off") == 1
        assert cluster.leases.loaded == ["lease-1"]


async def test_a_prefill_that_may_have_run_is_not_repeated_elsewhere() -> None:
    async with RouterCluster(prefill=2) as cluster:
        cluster.prefill[0].behaviour = Behaviour(drop=True)
        assert (await cluster.complete())[0] == 200
        assert [len(engine.calls) for engine in cluster.prefill] == [1, 0]


async def test_requests_do_not_wait_for_a_prefill_server_that_hangs() -> None:
    async with RouterCluster(connect_timeout_s=0.2, health_interval_s=0.1, prefill_timeout_s=60) as cluster:
        never = asyncio.Event()
        cluster.prefill[0].behaviour = Behaviour(hold=never)
        waiting = [asyncio.create_task(cluster.complete()) for _ in range(3)]
        await cluster.prefill[0].wait_for_calls(3)
        cluster.prefill[0].health_hold = never
        for status, _ in await asyncio.wait_for(asyncio.gather(*waiting), 30):
            assert status == 200
        assert cluster.metric("prefill_fallbacks_total", reason="timeout") == 3
        for call in cluster.prefill[0].calls:
            await asyncio.wait_for(call.ended.wait(), LONGEST_WAIT_S)
            assert call.aborted
        assert cluster.router.core.pool.prefill[0].when_down == set()


async def test_a_prefill_server_that_keeps_failing_is_left_alone_for_a_while() -> None:
    async with RouterCluster() as cluster:
        cluster.prefill[0].behaviour = Behaviour(status=500)
        for _ in range(10):
            assert (await cluster.complete())[0] == 200
        assert len(cluster.prefill[0].calls) == 3
        health = json.loads((await cluster.get("/health"))[1])
        assert health["instances"][0]["state"] == "suspect"


@pytest.mark.parametrize("stream", [False, True])
async def test_client_errors_are_told_in_the_decode_servers_words(stream: bool) -> None:
    async with RouterCluster() as cluster:
        verdict = b'{"error":{"message":"context too long","type":"BadRequestError","param":null,"code":400}}'
        cluster.prefill[0].behaviour = Behaviour(status=400, body=b'{"error":"p"}')
        cluster.decode[0].behaviour = Behaviour(status=400, body=verdict)
        assert await cluster.complete(stream=stream) == (400, verdict)
        assert cluster.metric("failures_total", reason="client_error") == 1
        assert json.loads((await cluster.get("/health"))[1])["status"] == "healthy"


@pytest.mark.parametrize("status", [401, 404, 422, 429, 500, 502])
async def test_a_decode_servers_error_comes_back_unchanged_and_frees_the_blocks(status: int) -> None:
    async with RouterCluster(decode=2) as cluster:
        verdict = b'{"detail": "kept as it is"}'
        for engine in cluster.decode:
            engine.behaviour = Behaviour(status=status, body=verdict, headers={"Retry-After": "7"})
        assert await cluster.complete() == (status, verdict)
        assert sum(len(engine.calls) for engine in cluster.decode) == 1
        await asyncio.sleep(0)
        assert (cluster.leases.open, cluster.leases.released) == (set(), [("lease-1", "rejected")])


@pytest.mark.parametrize("stream", [False, True])
async def test_another_decode_server_takes_over_with_the_handoff_when_one_is_not_there(stream: bool) -> None:
    async with RouterCluster(decode=2) as cluster:
        await cluster.decode[0].stop()
        status, answer = await cluster.complete(stream=stream)
        assert status == 200
        assert answer == STREAM or not stream
        assert (cluster.leases.loaded, cluster.leases.released) == (["lease-1"], [])
        assert cluster.metric("decode_retries_total", reason="unreachable") == 1


@pytest.mark.parametrize(
    ("where", "stream"), [("before_headers", False), ("before_headers", True), ("before_first_byte", True)]
)
async def test_a_decode_server_that_dies_before_the_first_byte_is_replaced(where: str, stream: bool) -> None:
    async with RouterCluster(decode=2) as cluster:
        died = Behaviour(drop=True) if where == "before_headers" else Behaviour(cut_after=0)
        cluster.decode[0].behaviour = died
        status, answer = await cluster.complete(stream=stream)
        assert status == 200
        assert answer == STREAM or not stream
        # The first one may have fetched the blocks: the second does not rely on them.
        assert "kv_transfer_params" not in cluster.decode[1].calls[0].body
        assert cluster.metric("decode_retries_total", reason="lost") == 1
        assert cluster.leases.open == set()


async def test_a_request_that_kills_servers_meets_two_at_most() -> None:
    async with RouterCluster(decode=4) as cluster:
        for engine in cluster.decode:
            engine.behaviour = Behaviour(drop=True)
        status, answer = await cluster.complete()
        assert (status, "not again" in message(answer)) == (502, True)
        assert sum(len(engine.calls) for engine in cluster.decode) == 2


async def test_a_single_decode_server_is_asked_again_after_a_lost_connection() -> None:
    async with RouterCluster() as cluster:
        cluster.decode[0].script = [Behaviour(drop=True)]
        assert (await cluster.complete())[0] == 200
        assert len(cluster.decode[0].calls) == 2


async def test_a_decode_server_that_refuses_work_is_replaced() -> None:
    async with RouterCluster(decode=3) as cluster:
        for engine in (cluster.decode[0], cluster.decode[2]):  # the ones whose turn comes first
            engine.behaviour = Behaviour(status=503)
        assert (await cluster.complete())[0] == 200
        assert cluster.metric("decode_retries_total", reason="refused") == 2
        assert cluster.leases.open == set()


async def test_when_all_decode_servers_refuse_the_refusal_is_passed_on() -> None:
    async with RouterCluster(decode=3) as cluster:
        for engine in cluster.decode:
            engine.behaviour = Behaviour(status=503, body=b'{"error": "full"}', headers={"Retry-After": "9"})
        assert await cluster.complete() == (503, b'{"error": "full"}')
        assert [len(engine.calls) for engine in cluster.decode] == [1, 1, 1]
        assert cluster.metric("failures_total", reason="upstream_error") == 1


async def test_no_decode_server_at_all_says_which_and_what_to_do() -> None:
    async with RouterCluster(decode=2) as cluster:
        for engine in cluster.decode:
            await engine.stop()
        status, answer = await cluster.complete()
        assert status == 503
        for engine in cluster.decode:
            assert engine.url in message(answer)
        assert "Start one of them, or correct --decode" in message(answer)
        assert "Connect call failed" in message(answer)
        await asyncio.sleep(0)
        assert cluster.leases.released == [("lease-1", "aborted")]
        assert cluster.metric("failures_total", reason="no_decode_server") == 1


BROKEN_STREAMS: dict[str, Behaviour] = {
    "cut between events": Behaviour(cut_after=2),
    "cut within an event": Behaviour(chunks=[*token_events(2)[:2], b'data: {"choices"'], cut_after=3),
    "ended without [DONE]": Behaviour(chunks=token_events(2)[:2]),
}


@pytest.mark.parametrize("case", BROKEN_STREAMS)
async def test_a_stream_that_breaks_ends_with_an_error_event(case: str) -> None:
    async with RouterCluster(decode=2) as cluster:
        for engine in cluster.decode:
            engine.behaviour = BROKEN_STREAMS[case]
        status, answer = await cluster.complete(stream=True)
        events = answer.split(b"\n\n")
        assert status == 200
        assert events[:2] == [event.strip() for event in token_events(2)[:2]]
        assert "broke off" in message(events[2].removeprefix(b"data: "))
        assert events[3:] == [b"data: [DONE]", b""]
        assert sum(len(engine.calls) for engine in cluster.decode) == 1  # nothing is generated twice
        assert cluster.metric("failures_total", reason="truncated") == 1
        assert cluster.metric("requests_total", endpoint="/v1/completions", outcome="failed") == 1


async def test_a_break_within_an_event_too_large_to_hold_still_ends_in_an_event_of_its_own() -> None:
    async with RouterCluster() as cluster:
        cluster.decode[0].behaviour = Behaviour(chunks=[b"data: " + b"x" * (2 << 20)], cut_after=1)
        _, answer = await cluster.complete(stream=True)
        assert answer.endswith(DONE_EVENT)
        assert "broke off" in message(answer.split(b"\n\n")[-3].removeprefix(b"data: "))


async def test_an_error_event_of_the_engine_is_passed_on_and_counted_as_failure() -> None:
    event = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
    async with RouterCluster() as cluster:
        cluster.decode[0].behaviour = Behaviour(chunks=[token_events(1)[0], event, DONE_EVENT])
        assert await cluster.complete(stream=True) == (200, token_events(1)[0] + event + DONE_EVENT)
        assert cluster.metric("failures_total", reason="stream_error") == 1


@pytest.mark.parametrize("phase", ["prefill", "headers", "stream"])
async def test_every_wait_ends_at_the_request_deadline(phase: str) -> None:
    async with RouterCluster(request_timeout_s=0.5) as cluster:
        never = asyncio.Event()
        stuck = cluster.prefill[0] if phase == "prefill" else cluster.decode[0]
        stuck.behaviour = Behaviour(gates={1: never}) if phase == "stream" else Behaviour(hold=never)
        status, answer = await asyncio.wait_for(cluster.complete(stream=True), LONGEST_WAIT_S)
        if phase == "stream":
            assert status == 200
            assert "request_timeout_s" in message(answer.split(b"\n\n")[1].removeprefix(b"data: "))
            assert answer.endswith(DONE_EVENT)
        else:
            assert (status, "request_timeout_s" in message(answer)) == (504, True)
        await asyncio.wait_for(stuck.calls[0].ended.wait(), LONGEST_WAIT_S)
        assert stuck.calls[0].aborted
        assert cluster.metric("failures_total", reason="timeout") == 1
        assert cluster.leases.open == set()


async def test_a_client_that_does_not_read_is_cut_off_at_the_deadline() -> None:
    chunk = b"data: " + b"y" * 65_000 + b"\n\n"
    async with RouterCluster(request_timeout_s=0.5) as cluster:
        cluster.decode[0].behaviour = Behaviour(chunks=[chunk] * 1000 + [DONE_EVENT])
        host, port = "127.0.0.1", cluster.router.port
        reader, writer = await asyncio.open_connection(host, port, limit=1024)
        body = b'{"prompt":"x","stream":true}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        call = await cluster.decode[0].wait_for_calls(1)
        await asyncio.wait_for(call.ended.wait(), LONGEST_WAIT_S)
        assert call.aborted
        await asyncio.sleep(1.2)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(len(chunk) * 1000), LONGEST_WAIT_S)
        writer.close()
        assert cluster.metric("requests_in_flight", endpoint="/v1/completions") == 0


async def test_a_body_that_does_not_arrive_is_not_waited_for_for_ever() -> None:
    async with RouterCluster(request_timeout_s=0.3) as cluster:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.router.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n"), LONGEST_WAIT_S)
        assert head == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()


async def wait_for_state(cluster: RouterCluster, index: int, state: str) -> Any:
    for _ in range(6000):
        health = json.loads((await cluster.get("/health"))[1])
        if health["instances"][index]["state"] == state:
            return health
        await asyncio.sleep(0.01)
    raise AssertionError(f"instance {index} did not become {state}: {health}")


async def test_health_page_says_what_is_wrong_and_recovers_by_itself() -> None:
    async with RouterCluster(health_interval_s=0.1) as cluster:
        assert (await cluster.get("/health"))[0] == 200
        await cluster.prefill[0].stop()
        health = await wait_for_state(cluster, 0, "down")
        assert health["status"] == "degraded"
        assert cluster.prefill[0].url in health["reasons"][0]
        await cluster.decode[0].stop()
        await wait_for_state(cluster, 1, "down")
        status, page = await cluster.get("/health")
        assert (status, json.loads(page)["status"]) == (503, "unavailable")
        await cluster.prefill[0].start()
        await cluster.decode[0].start()
        await wait_for_state(cluster, 0, "healthy")
        health = await wait_for_state(cluster, 1, "healthy")
        assert (health["status"], health["reasons"]) == ("healthy", [])


async def test_a_server_whose_health_page_fails_gets_no_requests_until_it_recovers() -> None:
    async with RouterCluster(decode=2, health_interval_s=0.1) as cluster:
        cluster.decode[0].health_status = 503
        await wait_for_state(cluster, 1, "down")
        for _ in range(4):
            assert (await cluster.complete())[0] == 200
        assert [len(engine.calls) for engine in cluster.decode] == [0, 4]
        cluster.decode[0].health_status = 200
        await wait_for_state(cluster, 1, "healthy")
        await cluster.complete()
        await cluster.complete()
        assert len(cluster.decode[0].calls) == 1


async def test_the_last_decode_server_is_tried_even_when_it_seems_down() -> None:
    async with RouterCluster(health_interval_s=60) as cluster:
        await cluster.decode[0].stop()
        assert (await cluster.complete())[0] == 503
        await cluster.decode[0].start()
        assert (await cluster.complete())[0] == 200


async def test_a_bug_in_a_probe_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with RouterCluster(prefill=0, decode=1, health_interval_s=0.1) as cluster:
        upstream = cluster.router.core.upstream
        real, calls = upstream.get, 0

        async def get(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise RuntimeError("a bug")
            return await real(*arguments)

        monkeypatch.setattr(upstream, "get", get)
        deadline = time.monotonic() + 20
        while calls < 3:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        (instance,) = cluster.router.core.pool.decode
        assert instance.usable


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"nonsense\r\n\r\n", "the answer is not valid HTTP: Bad status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "Not enough data to satisfy content length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "Not enough data to satisfy"),
        (b"", "Server disconnected"),
        (None, "Cannot connect to host 127.0.0.1"),
    ],
)
async def test_the_http_clients_texts_are_passed_on_without_its_internals(
    sent: bytes | None, words: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent or b"")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if sent is None:
        server.close()
        await server.wait_closed()
    instance = Instance(parse_base_url(f"http://127.0.0.1:{port}"), Role.DECODE, time.monotonic)
    upstream = Upstream(5.0)
    try:
        with pytest.raises(UpstreamError, match=words) as caught:
            await upstream.get(instance, "/health", {}, 5.0)
    finally:
        await upstream.close()
        server.close()
    text = str(caught.value)
    for noise in ("ssl:", "<", "Error:", "400,", "message=", "\n", "\\n", "^"):
        assert noise not in text.replace("decode server", "")

"""A router as a process: its first line, its port, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from kvferry.config.schema import RouterOptions
from kvferry.errors import ConfigError, ResourceExhaustedError
from kvferry.router import RouterServer
from kvferry.testing.fake_openai import DONE_EVENT, Behaviour, FakeServer, Leases, token_events
from kvferry.testing.router_cluster import LONGEST_WAIT_S, RouterCluster, request_body

PROGRAM = """
import sys
from kvferry.config.schema import RouterOptions
from kvferry.router import run
run(RouterOptions(port=0, decode=(sys.argv[1],), drain_timeout_s=float(sys.argv[2])))
"""


@asynccontextmanager
async def router_process(
    decode: FakeServer, drain_s: float
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, decode.url, str(drain_s), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), LONGEST_WAIT_S))
        assert line["event"] == "listening"
        assert line["url"] == f"http://127.0.0.1:{line['port']}"
        yield process, line["url"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def no_longer_listens(url: str) -> None:
    """Wait until a router has taken note of a signal."""
    _, _, port = url.rpartition(":")
    async with asyncio.timeout(LONGEST_WAIT_S):
        with contextlib.suppress(ConnectionError):
            while True:
                _, writer = await asyncio.open_connection("127.0.0.1", int(port))
                writer.close()
                await asyncio.sleep(0.01)


@asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    server = FakeServer(Leases())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_requests_finish_and_admits_no_more(number: signal.Signals) -> None:
    gate = asyncio.Event()
    async with (
        fake_server() as decode,
        router_process(decode, 30) as (process, url),
        aiohttp.ClientSession() as client,
    ):
        decode.behaviour = Behaviour(gates={2: gate})
        async with client.post(url + "/v1/completions", data=request_body(stream=True)) as response:
            await response.content.readexactly(len(token_events(1)[0]))
            process.send_signal(number)
            await no_longer_listens(url)
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.post(url + "/v1/completions", data=request_body())
            gate.set()
            assert (await response.content.read()).endswith(DONE_EVENT)
        assert await asyncio.wait_for(process.wait(), LONGEST_WAIT_S) == 0


async def test_what_outlasts_the_drain_time_ends_with_an_error_event() -> None:
    async with (
        fake_server() as decode,
        router_process(decode, 0.3) as (process, url),
        aiohttp.ClientSession() as client,
    ):
        decode.behaviour = Behaviour(gates={1: asyncio.Event()})
        async with client.post(url + "/v1/completions", data=request_body(stream=True)) as response:
            await response.content.readexactly(len(token_events(1)[0]))
            process.terminate()
            rest = await asyncio.wait_for(response.content.read(), LONGEST_WAIT_S)
        error, done, _ = rest.split(b"\n\n")
        assert "shutting down" in json.loads(error.removeprefix(b"data: "))["error"]["message"]
        assert done == b"data: [DONE]"
        assert await asyncio.wait_for(process.wait(), LONGEST_WAIT_S) == 0
        assert decode.calls[0].aborted


async def test_a_second_signal_does_not_wait() -> None:
    async with (
        fake_server() as decode,
        router_process(decode, 60) as (process, url),
        aiohttp.ClientSession() as client,
    ):
        decode.behaviour = Behaviour(hold=asyncio.Event())
        waiting = asyncio.create_task(client.post(url + "/v1/completions", data=request_body()))
        await decode.wait_for_calls(1)
        process.terminate()
        await no_longer_listens(url)
        process.terminate()
        response = await asyncio.wait_for(waiting, LONGEST_WAIT_S)
        assert response.status == 503
        response.release()
        assert await asyncio.wait_for(process.wait(), LONGEST_WAIT_S) == 0


async def test_while_draining_an_open_connection_gets_a_refusal() -> None:
    async with RouterCluster() as cluster:
        hold = asyncio.Event()
        cluster.decode[0].script = [Behaviour(), Behaviour(hold=hold)]
        await cluster.complete()  # leaves a connection in the pool
        waiting = asyncio.create_task(cluster.complete())
        await cluster.decode[0].wait_for_calls(2)
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.router.port)
        stopping = asyncio.create_task(cluster.router.stop(5))
        await asyncio.sleep(0.05)
        body = request_body()
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        assert (
            await asyncio.wait_for(reader.readline(), LONGEST_WAIT_S)
            == b"HTTP/1.1 503 Service Unavailable\r\n"
        )
        writer.close()
        hold.set()
        assert (await waiting)[0] == 200
        await stopping


async def test_a_port_in_use_is_named() -> None:
    async with fake_server() as other:
        router = RouterServer(RouterOptions(port=other.port, decode=(other.url,)))
        with pytest.raises(
            ResourceExhaustedError, match=f"port {other.port}: it is in use; choose another with --port"
        ):
            await router.start()


async def test_an_address_of_another_host_is_named() -> None:
    router = RouterServer(RouterOptions(host="192.0.2.1", port=0, decode=("http://127.0.0.1:1",)))
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1 port 0: .*assign"):
        await router.start()


def test_no_decode_server_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="--decode URL"):
        RouterServer(RouterOptions(prefill=("http://127.0.0.1:1",)))


async def test_only_loopback_by_default_and_a_warning_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    assert RouterOptions().host == "127.0.0.1"
    async with RouterCluster(prefill=0, host="127.0.0.1"):
        assert "anyone who reaches" not in caplog.text
    router = RouterServer(RouterOptions(host="0.0.0.0", port=0, decode=("http://127.0.0.1:1",)))
    await router.start()
    await router.stop()
    assert "anyone who reaches this address can use the engines" in caplog.text

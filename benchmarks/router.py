"""What the router adds to a request: the same client against a fake engine directly, and through the router.

    python benchmarks/router.py [--json FILE] [--requests N] [--rounds N]

Engines, router and client are separate processes on loopback. The engines answer at once, so that all the
time seen is HTTP and routing. Every row compares two figures of the same run: `against` is the fake engine
without the router. Where there is a prefill server, a request through the router costs a second request by
design.

Latencies and rates are those of the best round, since on a busy machine every hop waits for a processor. The
processor time that the router itself uses per request is measured, too, against that of the fake engine,
which does what any such Python server has to do: read one request, write one answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

ENGINE = """
import asyncio, sys
from kvferry.testing.fake_openai import Behaviour, FakeServer, Leases
async def main():
    engine = FakeServer(Leases())
    engine.leases.load = lambda params: None
    engine.behaviour = Behaviour(tokens=int(sys.argv[1]))
    engine.calls = Forget()
    await engine.start()
    print(engine.url, flush=True)
    await asyncio.Event().wait()
class Forget(list):
    def append(self, call): pass
asyncio.run(main())
"""
ROUTER = """
import sys
from kvferry.config.schema import RouterOptions
from kvferry.router import RouterServer
from kvferry.router.server import serve
async def no_release(params, reason): return True
options = RouterOptions(port=0, prefill=tuple(filter(None, [sys.argv[1]])), decode=(sys.argv[2],))
import asyncio
server = RouterServer(options, release_lease=no_release)
asyncio.run(serve(server, lambda: print(server.url, flush=True)))
"""
TOKENS = 128


class Server(NamedTuple):
    """A running server process."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def process(program: str, *arguments: str) -> Iterator[Server]:
    """Start a server and wait for the URL that it prints."""
    child = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        if not url:
            raise RuntimeError("a server did not start")
        yield Server(url, child.pid)
    finally:
        child.terminate()
        child.wait(10)


class Client:
    """Sends completions to one server and times them."""

    def __init__(self, session: aiohttp.ClientSession, url: str, prompt_bytes: int, stream: bool) -> None:
        self._session = session
        self._url = url + "/v1/completions"
        body = {"model": "fake", "prompt": "x" * prompt_bytes, "stream": stream}
        self._body = json.dumps(body).encode()
        self._headers = {"Content-Type": "application/json"}

    async def first_byte(self) -> float:
        """Seconds until the first byte of the answer; the rest is read, too."""
        started = time.perf_counter()
        async with self._session.post(self._url, data=self._body, headers=self._headers) as response:
            await response.content.readany()
            took = time.perf_counter() - started
            await response.read()
        return took

    async def whole(self) -> float:
        """Seconds until the answer is complete."""
        started = time.perf_counter()
        async with self._session.post(self._url, data=self._body, headers=self._headers) as response:
            answer = await response.read()
            if response.status != 200 or not answer:
                raise RuntimeError(f"status {response.status}: {answer[:200]!r}")
        return time.perf_counter() - started


async def median_s(send: Callable[[], Awaitable[float]], requests: int) -> float:
    """Median time of requests sent one after the other."""
    return statistics.median([await send() for _ in range(requests)])


async def per_second(send: Callable[[], Awaitable[float]], requests: int, at_once: int) -> float:
    """Requests per second with so many under way."""
    left = iter(range(requests))

    async def worker() -> None:
        for _ in left:
            await send()

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return requests / (time.perf_counter() - started)


def row(case: str, ours: float, theirs: float, *, unit: str, target: str, met: bool) -> dict[str, Any]:
    """One line of the result."""
    return {
        "bench": "router",
        "case": case,
        "ours": round(ours, 3),
        "unit": unit,
        "against": "the engine directly",
        "theirs": round(theirs, 3),
        "ratio": round(ours / theirs, 3),
        "target": target,
        "met": met,
    }


class Comparison:
    """Runs the same load through a router and at the engine, in turns, so that both see the same machine."""

    def __init__(
        self, session: aiohttp.ClientSession, servers: dict[str, Server], requests: int, rounds: int
    ) -> None:
        self._session = session
        self._servers = servers
        self._requests = requests
        self._rounds = rounds

    def _clients(self, through: str, prompt_bytes: int, stream: bool) -> tuple[Client, Client]:
        ours, theirs = self._servers[through], self._servers["engine"]
        return (
            Client(self._session, ours.url, prompt_bytes, stream),
            Client(self._session, theirs.url, prompt_bytes, stream),
        )

    async def latency(
        self, case: str, through: str, *, prompt_bytes: int = 1 << 10, stream: bool = False, limit_ms: float
    ) -> dict[str, Any]:
        """Median time of a request (streamed: to its first byte); the limit is on what the router adds."""
        clients = self._clients(through, prompt_bytes, stream)
        best_ms = [float("inf")] * 2
        for _ in range(self._rounds):
            for side, client in enumerate(clients):
                send = client.first_byte if stream else client.whole
                best_ms[side] = min(best_ms[side], await median_s(send, self._requests) * 1e3)
        ours, theirs = best_ms
        target = f"adds at most {limit_ms:g} ms"
        return row(case, ours, theirs, unit="ms", target=target, met=ours - theirs <= limit_ms)

    async def rate(
        self, case: str, through: str, *, stream: bool = False, at_once: int, least: float
    ) -> dict[str, Any]:
        """Requests per second with several under way; the limit is on the ratio."""
        clients = self._clients(through, 1 << 10, stream)
        best = [0.0] * 2
        for _ in range(self._rounds):
            for side, client in enumerate(clients):
                best[side] = max(best[side], await per_second(client.whole, self._requests, at_once))
        ours, theirs = best
        target = f"at least {least:g} of the direct rate"
        return row(case, ours, theirs, unit="1/s", target=target, met=ours >= least * theirs)

    async def processor(self, case: str, through: str, *, most: float) -> dict[str, Any]:
        """Processor time per request of the router alone, and of the engine when it is asked directly."""
        requests = self._requests * self._rounds
        used_ms = []
        for name, client in zip((through, "engine"), self._clients(through, 1 << 10, False), strict=True):
            before_s = self._servers[name].cpu_s()
            await per_second(client.whole, requests, 8)
            used_ms.append((self._servers[name].cpu_s() - before_s) / requests * 1e3)
        ours, theirs = used_ms
        target = f"at most {most:g} times the engine's"
        return row(case, ours, theirs, unit="ms", target=target, met=ours <= most * theirs)


async def measure(servers: dict[str, Server], requests: int, rounds: int) -> list[dict[str, Any]]:
    """Run all cases."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for server in servers.values():  # connections, caches, first-use costs
            await median_s(Client(session, server.url, 1 << 10, stream=False).whole, 20)
        run = Comparison(session, servers, requests, rounds)
        return [
            await run.latency("latency, decode only", "decode_only", limit_ms=1.5),
            await run.latency("latency, prefill + decode", "pd", limit_ms=3.0),
            await run.latency("latency, 1 MiB prompt", "pd", prompt_bytes=1 << 20, limit_ms=20.0),
            await run.latency("time to first byte", "pd", stream=True, limit_ms=3.0),
            await run.rate(
                f"streams of {TOKENS} tokens, decode only", "decode_only", stream=True, at_once=16, least=0.25
            ),
            await run.rate("requests, decode only, 32 at once", "decode_only", at_once=32, least=0.25),
            await run.rate("requests, prefill + decode, 32 at once", "pd", at_once=32, least=0.15),
            await run.processor("processor time, decode only", "decode_only", most=6.0),
            await run.processor("processor time, prefill + decode", "pd", most=12.0),
        ]


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        prefill = stack.enter_context(process(ENGINE, "1"))
        engine = stack.enter_context(process(ENGINE, str(TOKENS)))
        servers = {
            "engine": engine,
            "pd": stack.enter_context(process(ROUTER, prefill.url, engine.url)),
            "decode_only": stack.enter_context(process(ROUTER, "", engine.url)),
        }
        rows = asyncio.run(measure(servers, arguments.requests, arguments.rounds))
    for one in rows:
        print(
            f"{one['case']:52s} {one['ours']:9.3f} {one['unit']:3s} direct {one['theirs']:9.3f}  "
            f"ratio {one['ratio']:6.3f}  {one['target']}: {'met' if one['met'] else 'MISSED'}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A router with fake engines behind it, for tests: everything on loopback, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from kvferry.config.schema import RouterOptions
from kvferry.router import RouterServer
from kvferry.scheduling import Policy
from kvferry.testing.fake_openai import FakeServer, Leases

LONGEST_WAIT_S = 60.0  # for anything: what takes longer hangs


class RouterCluster:
    """`async with RouterCluster(prefill=1, decode=2) as cluster: await cluster.complete()`."""

    def __init__(
        self,
        prefill: int = 1,
        decode: int = 1,
        *,
        policy: Policy | None = None,
        host: str = "127.0.0.1",
        server: Callable[..., FakeServer] = FakeServer,
        **options: Any,
    ) -> None:
        self.leases = Leases()
        self.prefill = [server(self.leases, host=host) for _ in range(prefill)]
        self.decode = [server(self.leases, host=host) for _ in range(decode)]
        self._options = {"host": host, "port": 0, **options}
        self._policy = policy
        self._router: RouterServer | None = None
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RouterCluster:
        """Start the engines, then the router."""
        for engine in (*self.prefill, *self.decode):
            await engine.start()
        options = RouterOptions(
            prefill=tuple(engine.url for engine in self.prefill),
            decode=tuple(engine.url for engine in self.decode),
            **self._options,
        )
        self._router = RouterServer(options, policy=self._policy, release_lease=self.leases.release)
        await self._router.start()
        await asyncio.wait_for(self._router.core.prober.first_round(), LONGEST_WAIT_S)
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=LONGEST_WAIT_S)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything, without waiting for requests. `TimeoutError` names what does not end."""
        await _within("the client's end", self.client.close())
        await _within("the router's end", self.router.stop(0))
        for engine in (*self.prefill, *self.decode):
            await _within("a fake engine's end", engine.stop())

    @property
    def router(self) -> RouterServer:
        """The running router."""
        if self._router is None:
            raise RuntimeError("the cluster is not started")
        return self._router

    @property
    def client(self) -> aiohttp.ClientSession:
        """An HTTP client without a limit on connections."""
        if self._client is None:
            raise RuntimeError("the cluster is not started")
        return self._client

    async def complete(
        self,
        *,
        path: str = "/v1/completions",
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
        **fields: Any,
    ) -> tuple[int, bytes]:
        """Send one request (prompt "hello", 4 tokens, unless given); return status and body of the answer."""
        body = raw if raw is not None else request_body(**fields)
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self.client.post(self.router.url + path, data=body, headers=sent) as response:
            return response.status, await response.read()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Fetch one of the router's pages: status, body."""
        async with self.client.get(self.router.url + path) as response:
            return response.status, await response.read()

    def metric(self, name: str, **labels: str) -> float:
        """Return a sample's present value; `name` without `kvferry_router_`."""
        return self.router.core.metrics.registry.value(f"kvferry_router_{name}", **labels)


async def _within(what: str, ending: Awaitable[None]) -> None:
    try:
        await asyncio.wait_for(ending, LONGEST_WAIT_S)
    except TimeoutError:
        raise TimeoutError(f"{what} takes more than {LONGEST_WAIT_S:g} s") from None


def request_body(**fields: Any) -> bytes:
    """Encode a completion request; a field given as None is left out."""
    body = {"model": "fake", "prompt": "hello", "max_tokens": 4, **fields}
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})

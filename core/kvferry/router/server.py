"""Running a router: listening, signals, and an end that lets requests finish."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from kvferry.config import RouterOptions, TransferOptions, http_logger
from kvferry.errors import ConfigError, KVFerryError, ResourceExhaustedError
from kvferry.router.app import Front
from kvferry.router.core import Core
from kvferry.router.health import Prober
from kvferry.router.instances import Pool
from kvferry.router.links import Links
from kvferry.router.metrics import RouterMetrics
from kvferry.router.paired import bootstrap_ports
from kvferry.router.release import NativeReleaser, ReleaseFunction, Releaser, open_native_releaser
from kvferry.router.streaming import StreamBook
from kvferry.router.upstream import Upstream
from kvferry.scheduling import LongestPrefix, Policy, RoundRobin

if TYPE_CHECKING:
    from kvferry.router.prefixes import Prefixes

logger = logging.getLogger(__name__)

# After the deadline for draining, time for the last error events and lease releases to go out.
AFTERMATH_S = 2.0


class RouterServer:
    """One listening router. All methods belong to one event loop.

    `transfer` are the settings of the engine by which unused prefill leases are given back; `policy` chooses
    instances (default: by prefix with `prefill_events`, else round robin); `release_lease` replaces that
    engine.
    """

    def __init__(
        self,
        options: RouterOptions,
        transfer: TransferOptions | None = None,
        *,
        policy: Policy | None = None,
        release_lease: ReleaseFunction | None = None,
    ) -> None:
        self.options = options
        self.port = 0
        self._pool = Pool(options.prefill, options.decode, time.monotonic, options.encode)
        self._bootstrap_ports = bootstrap_ports(options, self._pool)
        self._policy = policy or (LongestPrefix() if options.prefill_events else RoundRobin())
        self._transfer = transfer or TransferOptions()
        self._has_leases = options.engine == "vllm"  # the others have none
        self._release_lease = release_lease
        self._native_releaser: NativeReleaser | None = None
        self._core: Core | None = None
        self._front: Front | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        """The base URL clients use; valid once started."""
        host = self.options.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def core(self) -> Core:
        """The parts of the router; valid once started."""
        if self._core is None:
            raise RuntimeError("the router is not started")
        return self._core

    async def start(self) -> None:
        """Listen. Raises `ConfigError` (settings), `ResourceExhaustedError` (the port is in use), or
        `UnsupportedError` (KV events without ZeroMQ).
        """
        options, metrics = self.options, RouterMetrics()
        upstream = Upstream(options.connect_timeout_s)
        prefixes = await self._listen_to_events(upstream, metrics)
        function = await self._open_releaser(upstream, prefixes)
        releaser = Releaser(function, metrics)
        self._core = core = Core(
            options=options,
            pool=self._pool,
            policy=self._policy,
            upstream=upstream,
            metrics=metrics,
            releaser=releaser,
            prefixes=prefixes,
            bootstrap_ports=self._bootstrap_ports,
            links=Links(upstream, releaser, options.prefill_timeout_s),
            prober=Prober(self._pool, upstream, options.health_interval_s, options.connect_timeout_s),
            # Without the means to say that a prefill failed, its decode server would wait in vain.
            streams=StreamBook(
                enabled=options.handoff == "auto" and function is not None and self._has_leases
            ),
        )
        self._front = Front(core)
        # handler_cancellation: a client that closes its connection cancels its handler, which closes the
        # connection to the engine, which aborts the request there.
        self._runner = web.AppRunner(
            self._front.application(),
            handler_cancellation=True,
            access_log=None,
            logger=http_logger(),
            shutdown_timeout=AFTERMATH_S,
        )
        try:
            await self._runner.setup()
            self._site = web.TCPSite(self._runner, options.host, options.port, backlog=1024)
            await self._site.start()
        except OSError as error:
            await self._close()
            raise _explain(error, options) from error
        self.port = self._runner.addresses[0][1]
        core.prober.start()
        if not _is_loopback(options.host):
            logger.warning("listening on %s: anyone who reaches this address can use the engines", self.url)

    async def _listen_to_events(self, upstream: Upstream, metrics: RouterMetrics) -> Prefixes | None:
        if not self.options.prefill_events and not self.options.prefill_replays:
            return None
        from kvferry.router.prefixes import Prefixes

        try:
            return Prefixes(self.options, self._pool, upstream, metrics)
        except KVFerryError:
            await upstream.close()
            raise

    async def _open_releaser(self, upstream: Upstream, prefixes: Prefixes | None) -> ReleaseFunction | None:
        """Last of what settings may be wrong for: it starts an engine, and says so."""
        if self._release_lease is not None or not self.options.prefill or not self._has_leases:
            return self._release_lease
        try:
            self._native_releaser = await asyncio.to_thread(open_native_releaser, self._transfer)
        except KVFerryError:
            if prefixes is not None:
                await prefixes.close()
            await upstream.close()
            raise
        return self._native_releaser.release if self._native_releaser else None

    async def stop(self, drain_timeout_s: float | None = None) -> None:
        """Stop listening, let requests finish for the time allowed, end the rest, close everything.

        A second call does nothing.
        """
        if self._front is not None and self._site is not None:
            site, self._site = self._site, None
            await site.stop()
            timeout_s = self.options.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
            await self._front.drain(timeout_s)
        await self._close()

    def hurry(self) -> None:
        """End the requests that a `stop` under way still waits for."""
        if self._front is not None:
            self._front.end_all()

    async def _close(self) -> None:
        if self._core is None or self._runner is None:
            return
        runner, self._runner = self._runner, None
        await runner.cleanup()
        await self._core.prober.stop()
        await self._core.releaser.settle(AFTERMATH_S)
        if self._core.prefixes is not None:
            await self._core.prefixes.close()
        await self._core.upstream.close()
        if self._native_releaser is not None:
            await asyncio.to_thread(self._native_releaser.close)


async def serve(server: RouterServer, ready: Callable[[], None] | None = None) -> None:
    """Run a router until SIGTERM or SIGINT; a second signal ends the requests still running at once."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await server.start()
        if ready is not None:
            ready()
        await stopping.wait()
        logger.info("shutting down; requests under way have %g s", server.options.drain_timeout_s)
        stop = asyncio.create_task(server.stop())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait({stop, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if hurry.is_set():
            server.hurry()
        await stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run(options: RouterOptions, transfer: TransferOptions | None = None) -> None:
    """Run a router in this thread until SIGTERM or SIGINT.

    Prints one line of JSON on standard output once it listens, with keys `event` ("listening"), `url`, `host`
    and `port`.
    Raises `ConfigError` for addresses and transfer settings that make no sense, and `ResourceExhaustedError`
    for a port in use.
    """
    server = RouterServer(options, transfer)
    asyncio.run(serve(server, lambda: _announce(server)))


def _announce(server: RouterServer) -> None:
    event = {"event": "listening", "url": server.url, "host": server.options.host, "port": server.port}
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()
    logger.info(
        "router on %s; prefill: %s; decode: %s",
        server.url,
        ", ".join(one.name for one in server._pool.prefill) or "none",
        ", ".join(one.name for one in server._pool.decode),
    )


def _explain(error: OSError, options: RouterOptions) -> Exception:
    where = f"{options.host} port {options.port}"
    if error.errno == errno.EADDRINUSE:
        return ResourceExhaustedError(
            f"cannot listen on {where}: it is in use; choose another with --port, or 0 for any free one"
        )
    return ConfigError(f"cannot listen on {where}: {error.strerror or error}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"

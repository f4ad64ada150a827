"""The HTTP interface of a node: health, status, metrics, administration.

Routes: GET /health (no token), /status, /metrics, /objects?prefix=&limit=; POST /drain?timeout_s=;
DELETE /objects?key= (hex) or ?tag=. Answers are JSON, errors have {"error": {"code", "message"}}. Nothing
executes what it was sent. Destructive verbs are logged. Without a token the interface is on loopback: all but
/health, /status and /metrics is for the node's own user and root then, and nothing is told or changed for a
web page, whatever name it was loaded by.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from kvferry._native import Endpoint
from kvferry.config import AdminOptions, admin_token, http_logger, resolve_address
from kvferry.errors import (
    ConfigError,
    DeadlineExceededError,
    InvalidArgumentError,
    KVFerryError,
    ResourceExhaustedError,
)
from kvferry.node.callers import is_same_user
from kvferry.node.status import object_row, status_document
from kvferry.store import open_store

if TYPE_CHECKING:
    from kvferry.node.process import NodeProcess

logger = logging.getLogger("kvferry.node")

_START_S = 10.0
_BACKLOG = 128
_MAX_LIMIT = 1000
_FOR_ALL = ("/health", "/metrics", "/status")  # without a token: of every user of this machine
_HTTP = {"invalid_argument": 400, "not_found": 404, "resource_exhausted": 503, "unavailable": 503}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminServer:
    """Serves one node's interface from a thread with an event loop of its own."""

    def __init__(self, node: NodeProcess, token: bytes, listener: socket.socket) -> None:
        """Serve. `token`: from `read_token`; `listener`: from `listen`, and this object's from now on. Raises
        `DeadlineExceededError`.
        """
        options = node.config.admin
        self._node = node
        self._token = token
        self._listener = listener
        self._bound_to = options.bind
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvferry-admin", daemon=True)
        self._thread.start()
        try:
            self.url: str = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_START_S)
        except TimeoutError:
            self.close()
            raise DeadlineExceededError(
                f"admin.bind {options.bind}: not serving after {_START_S:g} s; the machine is overloaded"
            ) from None

    def close(self) -> None:
        """Stop listening; idempotent."""
        if not self._loop.is_running():
            return
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()
        self._listener.close()

    async def _start(self) -> str:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/objects", self._objects)
        app.router.add_delete("/objects", self._remove)
        app.router.add_post("/drain", self._drain)
        self._runner = web.AppRunner(app, access_log=None, logger=http_logger())
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._token and request.path != "/health":
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._token):
                return _denied("the token is missing or wrong", 401)
        if (
            not self._token
            and request.path not in _FOR_ALL
            and not await asyncio.to_thread(_is_ours, request)
        ):
            return _denied("this is for the node's own user; others need admin.token_file", 403)
        host = request.headers.get("Host", "")
        if not self._token and not names_us(host, self._bound_to):
            return _denied(
                f"the Host header names {host!r}, as that of a web page whose name points here would; ask by "
                "localhost or a loopback address, or set admin.token_file",
                403,
            )
        if request.method not in ("GET", "HEAD") and "Origin" in request.headers:
            return _denied("web pages cannot do this", 403)
        try:
            return await handler(request)
        except KVFerryError as error:
            return _json({"error": {"code": error.code, "message": str(error)}}, _HTTP.get(error.code, 500))

    async def _health(self, _request: web.Request) -> web.Response:
        problems = self._node.problems()
        return _json({"status": "degraded" if problems else "ok", "reasons": problems})

    async def _status(self, _request: web.Request) -> web.Response:
        return _json(status_document(self._node))

    async def _metrics(self, _request: web.Request) -> web.Response:
        metrics = self._node.metrics.registry
        body = await asyncio.to_thread(metrics.export)
        return web.Response(body=body, headers={"Content-Type": metrics.content_type})

    async def _objects(self, request: web.Request) -> web.Response:
        limit = _integer(request, "limit", 100, _MAX_LIMIT)
        prefix = _hex(request, "prefix")
        rows = await asyncio.to_thread(self._list, prefix, limit)
        return _json({"objects": rows})

    def _list(self, prefix: bytes, limit: int) -> list[dict[str, Any]]:
        rows = []
        with open_store(self._node.config, node=self._node.endpoint) as store:
            for info in store.scan(prefix):
                rows.append(object_row(info))
                if len(rows) >= limit:
                    break
        return rows

    async def _remove(self, request: web.Request) -> web.Response:
        tag, key = request.query.get("tag", ""), _hex(request, "key")
        if bool(tag) == bool(key):
            raise InvalidArgumentError("name either ?key= (hex) or ?tag=")
        return _json({"removed": await asyncio.to_thread(self._remove_now, tag, key)})

    def _remove_now(self, tag: str, key: bytes) -> int:
        logger.info("asked over HTTP to remove %s", f"tag {tag!r}" if tag else f"key {key!r}")
        with open_store(self._node.config, node=self._node.endpoint) as store:
            if tag:
                return store.remove_tag(tag)
            store.remove(key)
            return 1

    async def _drain(self, request: web.Request) -> web.Response:
        timeout_s = _integer(request, "timeout_s", 60, 86400)
        return _json({"left": await asyncio.to_thread(self._node.drain, float(timeout_s))})


def read_token(options: AdminOptions) -> bytes:
    """Return the token to ask for, empty for none.

    Raises `ConfigError` if there is none and the interface can be reached from outside, or it cannot be read.
    """
    token = admin_token(options)
    if token:
        return token
    if not _is_loopback(_address(options).host):
        raise ConfigError(f"admin.bind {options.bind} can be reached from outside: set admin.token_file")
    return b""


def listen(options: AdminOptions) -> socket.socket:
    """Return a socket that listens at `admin.bind`, to be served later.

    Raises `ConfigError`, `ResourceExhaustedError` (the port is in use).
    """
    address = _address(options)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ResourceExhaustedError(
            f"admin.bind (--admin) {options.bind}: {error.strerror}; choose another port, or 0 for any"
        ) from error


def names_us(host: str, bound_to: str) -> bool:
    """Whether a Host header names this machine by itself, or the address that `admin.bind` has."""
    name = _name_of(host)
    return name in ("", "localhost", _name_of(bound_to)) or _is_loopback(name)


def _name_of(host: str) -> str:
    """Return the name or address in a Host header, without its port."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _address(options: AdminOptions) -> Endpoint:
    try:
        return Endpoint(resolve_address(options.bind))
    except KVFerryError as error:
        raise ConfigError(f"admin.bind: {error}") from error


def _is_ours(request: web.Request) -> bool:
    transport = request.transport
    if transport is None:  # gone already
        return False
    caller, ours = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    return is_same_user(caller[:2], ours[:2])


def _denied(message: str, status: int) -> web.Response:
    return _json({"error": {"code": "access_denied", "message": message}}, status)


def _json(document: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, content_type="application/json")


def _integer(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= most:
        raise InvalidArgumentError(f"{name} must be a number from 1 to {most}, not {text!r}")
    return int(text)


def _hex(request: web.Request, name: str) -> bytes:
    text = request.query.get(name, "")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgumentError(f"{name} must be in hexadecimal digits, not {text!r}") from None

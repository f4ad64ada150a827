"""OpenAI-compatible servers that do as they are told: a stand-in for prefill and decode engines.

A `FakeServer` answers completions like an engine with a KV connector: as prefill server it opens a lease and
names it in `kv_transfer_params`, as decode server it ends the lease it is given. Its `Behaviour` makes it
slow, wrong, or gone. It records every call, and whether the caller hung up on it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

DONE_EVENT = b"data: [DONE]\n\n"


class Behaviour(msgspec.Struct, kw_only=True):
    """How a fake engine answers a completion. The defaults make a healthy engine.

    `hold` is waited for before anything is sent, `gates[i]` before chunk i of a stream. `chunks` replaces the
    stream's bytes, `body` the whole answer. `cut_after` breaks the connection after so many chunks (0: after
    the headers); `drop` breaks it without sending anything.
    """

    status: int = 200
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    hold: asyncio.Event | None = None
    chunks: list[bytes] | None = None
    tokens: int = 4
    gap_s: float = 0.0
    gates: Mapping[int, asyncio.Event] = {}
    cut_after: int | None = None
    drop: bool = False
    hand_off: bool = True


class Call(msgspec.Struct, kw_only=True):
    """One request as it arrived. `ended` is set when the engine is through with it; `aborted`: by hang-up."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: dict[str, Any]
    ended: asyncio.Event
    aborted: bool = False


class Leases:
    """The blocks that prefill engines keep, across all fake engines of a test, and what they stream.

    `cancelled` streams are those that the router gave up; `followed` those that a decode engine has read.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._streams: dict[str, asyncio.Future[str | None]] = {}  # its lease, once finished; None: cancelled
        self.open: set[str] = set()
        self.loaded: list[str] = []
        self.released: list[tuple[str, str]] = []
        self.cancelled: list[tuple[str, str]] = []
        self.followed: list[str] = []
        self._rooms: dict[int, asyncio.Event] = {}
        self.met: list[int] = []

    async def meet(self, room: int) -> None:
        """Wait as SGLang's servers do until both have a request with this number."""
        other = self._rooms.get(room)
        if other is not None:
            self.met.append(room)
            other.set()
            return
        self._rooms[room] = asyncio.Event()
        await self._rooms[room].wait()

    def grant(self, role_url: str) -> dict[str, Any]:
        """Open a lease and return the pull-mode parameters that name it."""
        lease = f"lease-{next(self._numbers)}"
        self.open.add(lease)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": role_url,
            "remote_request_id": lease,
            "remote_host": "127.0.0.1",
            "remote_port": 1,
            "tp_size": 1,
            "remote_num_tokens": 48,
            "kvferry": {"lease": lease},
        }

    def grant_from(self, node_id: str, stream: str | None) -> dict[str, Any]:
        """Open a lease of an engine that says who it is; it is the end of the stream, if any."""
        params = self.grant(node_id)
        lease = f"{0:016x}.{len(self.loaded) + len(self.open)}.{next(self._numbers):032x}"
        self.open.remove(params["kvferry"]["lease"])
        self.open.add(lease)
        params["kvferry"] = {"lease": lease, "node_ids": [node_id], "endpoints": ["127.0.0.1:9"]}
        if stream is not None:
            end = self._end_of(stream)
            if end.done():  # cancelled: nobody reads
                self.open.remove(lease)
            else:
                end.set_result(lease)
        return params

    async def follow(self, params: Mapping[str, Any], served_by: str | None) -> None:
        """Read a stream to its end as a decode engine does, which computes the prompt itself if it fails."""
        part = params["kvferry"]
        if part["node_ids"] != [served_by]:
            return
        lease = await asyncio.shield(self._end_of(part["stream"]))
        if lease in self.open:
            self.open.remove(lease)
            self.followed.append(part["stream"])

    def _end_of(self, stream: str) -> asyncio.Future[str | None]:
        if stream not in self._streams:
            self._streams[stream] = asyncio.get_running_loop().create_future()
        return self._streams[stream]

    def load(self, params: Mapping[str, Any]) -> None:
        """End a lease as a decode engine does that has read the blocks; fails if it is not open."""
        lease = params["kvferry"]["lease"]
        self.open.remove(lease)
        self.loaded.append(lease)

    async def release(self, params: Mapping[str, Any], reason: str) -> bool:
        """Stand in for `kvferry.handoff.LeaseReleaser.release_lease`."""
        if "stream" in params["kvferry"]:
            return self._cancel(params["kvferry"]["stream"], reason)
        lease = params["kvferry"]["lease"]
        held = lease in self.open
        self.open.discard(lease)
        self.released.append((lease, reason))
        return held

    def _cancel(self, stream: str, reason: str) -> bool:
        self.cancelled.append((stream, reason))
        end = self._end_of(stream)
        if end.done():
            self.open.discard(end.result() or "")
        else:
            end.set_result(None)
        return True


class FakeServer:
    """One server on a loopback port of its own. Its methods belong to one event loop."""

    def __init__(
        self, leases: Leases, *, models: tuple[str, ...] = ("fake",), host: str = "127.0.0.1"
    ) -> None:
        self.leases = leases
        self.models = models
        self.behaviour = Behaviour()
        self.script: list[Behaviour] = []
        self.calls: list[Call] = []
        self.health_status = 200
        self.health_hold: asyncio.Event | None = None
        self.node_id = ""  # of its transfer engine; empty: it does not say
        self.prefill: FakeServer | None = None  # whose streams it can follow
        self.tokenized: list[dict[str, Any]] = []
        self.tokenize_hold: asyncio.Event | None = None
        self.port = 0
        self._host = host
        self._arrived = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The base URL."""
        return (
            f"http://[{self._host}]:{self.port}" if ":" in self._host else f"http://{self._host}:{self.port}"
        )

    async def start(self) -> None:
        """Listen; again on the same port after `stop`."""
        app = web.Application(client_max_size=1 << 30)
        self.add_routes(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        if self.port == 0:
            self._keep_a_port()
        site = web.TCPSite(self._runner, self._host, self.port, reuse_address=True)
        await site.start()

    def add_routes(self, app: web.Application) -> None:
        """Say what is answered by what."""
        app.router.add_post("/v1/completions", self._serve)
        app.router.add_post("/v1/chat/completions", self._serve)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/health", self._health)

    def _keep_a_port(self) -> None:
        """Bind a port for as long as this object lives, so that nobody else is found there after `stop`."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((self._host, 0))
            self.port = place.getsockname()[1]
            weakref.finalize(self, os.close, place.detach())

    async def stop(self) -> None:
        """Close all connections, and refuse new ones until the next `start`."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for connection in list(runner.server.connections if runner.server else ()):
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    async def wait_for_calls(self, count: int, timeout_s: float = 60.0) -> Call:
        """Wait until so many completions have arrived in all; return the latest of them."""
        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(lambda: len(self.calls) >= count), timeout_s)
        return self.calls[count - 1]

    async def _health(self, request: web.Request) -> web.Response:
        if self.health_hold is not None:
            await self.health_hold.wait()
        return web.Response(status=self.health_status)

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        """One token for each byte of the text."""
        body = msgspec.json.decode(await request.read())
        self.tokenized.append(body)
        if self.tokenize_hold is not None:
            await self.tokenize_hold.wait()
        text = body.get("prompt") or "".join(str(each["content"]) for each in body["messages"])
        return web.json_response({"tokens": list(text.encode())})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        call = Call(
            path=request.path,
            headers=request.headers.copy(),
            raw=raw,
            body=msgspec.json.decode(raw),
            ended=asyncio.Event(),
        )
        behaviour = self.script.pop(0) if self.script else self.behaviour
        async with self._arrived:
            self.calls.append(call)
            self._arrived.notify_all()
        try:
            return await self._answer(request, call, behaviour)
        except (asyncio.CancelledError, ConnectionError):
            call.aborted = True
            raise asyncio.CancelledError from None
        finally:
            call.ended.set()

    async def _answer(self, request: web.Request, call: Call, behaviour: Behaviour) -> web.StreamResponse:
        if behaviour.hold is not None:
            await behaviour.hold.wait()
        if behaviour.drop:
            return await _cut(request)
        if behaviour.body is not None or behaviour.status >= 300:
            body = behaviour.body or b'{"error":{"message":"no","type":"Fake","param":null,"code":0}}'
            headers = {"Content-Type": "application/json", **behaviour.headers}
            return web.Response(status=behaviour.status, body=body, headers=headers)
        return await self._complete(request, call, behaviour)

    async def _complete(self, request: web.Request, call: Call, behaviour: Behaviour) -> web.StreamResponse:
        if "bootstrap_room" in call.body:
            await self.leases.meet(call.body["bootstrap_room"])
        params = call.body.get("kv_transfer_params") or {}
        handed_off = None
        if params.get("do_remote_decode") and behaviour.hand_off:
            stream = params.get("kvferry", {}).get("stream")
            handed_off = (
                self.leases.grant_from(self.node_id, stream) if self.node_id else self.leases.grant(self.url)
            )
        elif "stream" in params.get("kvferry", {}):
            await self.leases.follow(params, self.prefill.node_id if self.prefill else None)
        elif params.get("do_remote_prefill"):
            self.leases.load(params)
        if call.body.get("stream"):
            return await self._stream(request, call, behaviour)
        return web.Response(
            body=msgspec.json.encode(completion(call, behaviour.tokens, handed_off)),
            headers={"Content-Type": "application/json", **behaviour.headers},
        )

    async def _stream(self, request: web.Request, call: Call, behaviour: Behaviour) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream", **behaviour.headers})
        await out.prepare(request)
        chunks = behaviour.chunks if behaviour.chunks is not None else token_events(behaviour.tokens)
        for number, chunk in enumerate(chunks):
            if number in behaviour.gates:
                await behaviour.gates[number].wait()
            if number == behaviour.cut_after:
                return await _cut(request)
            await out.write(chunk)
            if behaviour.gap_s or number + 1 == behaviour.cut_after:
                await asyncio.sleep(max(behaviour.gap_s, 0.01))
        if behaviour.cut_after is not None:
            return await _cut(request)
        await out.write_eof()
        return out


async def _cut(request: web.Request) -> web.StreamResponse:
    """Break the connection as a dying process does."""
    if request.transport is not None:
        request.transport.close()
    raise ConnectionResetError("cut by the test")


def completion(call: Call, tokens: int, params: dict[str, Any] | None) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    count = int(call.body.get("max_tokens") or tokens)
    return {
        "id": f"cmpl-{call.headers.get('X-Request-Id', '')}",
        "object": "text_completion",
        "model": call.body.get("model"),
        "choices": [{"index": 0, "text": "".join(f" t{i}" for i in range(count)), "finish_reason": "length"}],
        "usage": {"completion_tokens": count},
        "kv_transfer_params": params,
    }


def token_events(tokens: int) -> list[bytes]:
    """Return the events of a streamed answer, one per token, `[DONE]` last."""
    events = [
        b"data: " + msgspec.json.encode({"choices": [{"index": 0, "text": f" t{i}"}]}) + b"\n\n"
        for i in range(tokens)
    ]
    return [*events, DONE_EVENT]

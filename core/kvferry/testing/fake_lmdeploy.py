"""LMDeploy's prefill and decode servers, as far as a router can tell: `FakeServer`s that must be connected.

Each has the endpoints by which two engines are connected. As prefill server it answers with the blocks of a
prompt and its first token, as decode server it refuses blocks that it cannot have read.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
from aiohttp import web

from kvferry.testing.fake_openai import Behaviour, Call, FakeServer, completion

FIRST_TOKEN = 42


class FakeLMDeploy(FakeServer):
    """One server. For tests to set: `tp_size`, `refuses` (a path of `/distserve/`), `key` (what it takes
    there), `opens` (it answers nothing there before) and `finish_reason`.
    """

    tp_size = 1
    key = ""
    opens: asyncio.Event | None = None
    refuses = ""
    finish_reason = "length"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.asked: list[tuple[str, str]] = []  # path, Authorization
        self.introduced: dict[str, str] = {}  # the other's name, and what was said to it
        self.connected: dict[str, str] = {}  # the other's name, and what it has said
        self.blocks: dict[tuple[int, ...], str] = {}  # handed out, and to which request
        self.migrated: list[dict[str, Any]] = []
        self._numbers = itertools.count()

    def add_routes(self, app: web.Application) -> None:
        """Add what connects engines."""
        super().add_routes(app)
        app.router.add_get("/distserve/engine_info", self._engine_info)
        app.router.add_post("/distserve/p2p_initialize", self._initialize)
        app.router.add_post("/distserve/p2p_connect", self._connect)

    async def _note(self, request: web.Request) -> None:
        name = request.path.rsplit("/", 1)[1]
        self.asked.append((name, request.headers.get("Authorization", "")))
        if self.opens is not None:
            await self.opens.wait()
        if name == self.refuses:
            raise web.HTTPInternalServerError
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            raise web.HTTPUnauthorized

    async def _engine_info(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.json_response(msgspec.json.encode({"tp_size": self.tp_size, "block_size": 16}).decode())

    async def _initialize(self, request: web.Request) -> web.Response:
        await self._note(request)
        body = msgspec.json.decode(await request.read())
        said = f"{body['local_engine_id']} to {body['remote_engine_id']} #{next(self._numbers)}"
        self.introduced[body["remote_engine_id"]] = said
        endpoint = [{"protocol": body["protocol"], "endpoint_info": said}]
        answer = {"status": 1, "engine_endpoint_info": {"zmq_address": said}}
        return web.json_response({**answer, "kvtransfer_endpoint_info": endpoint})

    async def _connect(self, request: web.Request) -> web.Response:
        await self._note(request)
        body = msgspec.json.decode(await request.read())
        other = body["remote_engine_id"]
        if other not in self.introduced:
            raise web.HTTPBadRequest
        self.connected[other] = body["remote_kvtransfer_endpoint_info"][0]["endpoint_info"]
        return web.json_response({"status": 1})

    async def _complete(self, request: web.Request, call: Call, behaviour: Behaviour) -> web.StreamResponse:
        if call.body.get("with_cache"):
            answer = completion(call, behaviour.tokens, None)
            answer["choices"][0]["finish_reason"] = self.finish_reason
            if behaviour.hand_off:
                blocks = [next(self._numbers), next(self._numbers)]
                self.blocks[tuple(blocks)] = str(call.headers.get("X-Request-Id"))
                answer |= {"cache_block_ids": blocks, "remote_token_ids": [FIRST_TOKEN]}
            return web.json_response(answer)
        wanted = call.body.get("migration_request")
        if wanted is not None:
            if wanted["remote_engine_id"] not in self.connected:
                raise web.HTTPInternalServerError
            self.migrated.append(wanted)
        return await super()._complete(request, call, behaviour)

"""One request's way through the router: prefill, decode, answer, and what happens when it is broken off."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from aiohttp import web

from kvferry.router.core import Core, Usage
from kvferry.router.decode import Answer, DecodeStep, NoDecodeError
from kvferry.router.encode import CHAT_PATH, EncodeStep
from kvferry.router.instances import Instance
from kvferry.router.prefill import PrefillStep
from kvferry.router.protocol import ParsedRequest, error_body, error_event
from kvferry.router.relay import EventRelay, StreamBrokenError
from kvferry.router.scope import Interruption, Scope
from kvferry.router.streaming import Handoff
from kvferry.router.upstream import UpstreamError, request_headers, response_headers
from kvferry.scheduling import RequestFeatures

logger = logging.getLogger(__name__)

# How long a client that was broken off may take to accept the last words to it.
LAST_WORDS_S = 1.0
JSON_HEADERS = {"Content-Type": "application/json"}


class Outcome(msgspec.Struct):
    """How a request ended: `done`, `failed` with a reason, or `cancelled` in a phase; and where it ran."""

    name: str = "cancelled"
    reason: str = ""
    phase: str = "prefill"
    prefill: str = "-"
    decode: str = "-"

    def done(self) -> None:
        """Note a complete answer with a 2xx status."""
        self.name = "done"

    def fail(self, reason: str) -> None:
        """Note a failure."""
        self.name, self.reason = "failed", reason


class Exchange:
    """Serves one admitted request."""

    prefill_step = PrefillStep

    def __init__(
        self,
        core: Core,
        request: web.Request,
        parsed: ParsedRequest,
        scope: Scope,
        *,
        request_id: str,
        arrived: float,
    ) -> None:
        self.outcome = Outcome()
        self._core = core
        self._request = request
        self._parsed = parsed
        self._scope = scope
        self.request_id = request_id
        self._arrived = arrived
        self.endpoint = request.path
        self._headers = request_headers(request.headers, request_id)
        self._features = RequestFeatures(
            request_id=request_id,
            model=parsed.model,
            body_bytes=len(parsed.raw),
            max_output_tokens=parsed.max_output_tokens,
            wants_prefill=parsed.bypass is None,
        )
        self._handoff = Handoff(core.releaser, None)
        self._out: web.StreamResponse | None = None
        self._relay: EventRelay | None = None

    async def run(self) -> web.StreamResponse:
        """Return the response. Raises `asyncio.CancelledError` or `ConnectionError` if the client left."""
        try:
            return await self._serve()
        except asyncio.CancelledError:
            self._handoff.give_back(rejected=False)
            if self._scope.interruption is None:
                raise
            self._scope.absorb()
            return await self._broken_off(self._scope.interruption)
        except NoDecodeError as error:
            return self._failure(error.reason, error.status, str(error))
        finally:
            self._handoff.give_back(rejected=False)

    async def _serve(self) -> web.StreamResponse:
        core = self._core
        await self._encode_media()
        await self._look_up_prefix()
        prefill, decode = core.place(
            self._features,
            core.usable_prefill(set()) if self._features.wants_prefill else [],
            core.usable_decode(set()),
        )
        arguments = (core, self.endpoint, self._headers, self._parsed, self._features)
        self._handoff = await self.prefill_step(*arguments).run(decode, prefill)
        self.outcome.phase = "decode"
        params = self._handoff.params
        if params is not None:
            self.outcome.prefill = str(params.get("remote_engine_id") or "handed_off")
        return await self._decode(DecodeStep(*arguments), decode)

    async def _encode_media(self) -> None:
        """Have images, clips and sounds encoded first, where there are servers for that."""
        if self._core.pool.encode and self.endpoint == CHAT_PATH:
            encoded = await EncodeStep(self._core, self._headers, self._parsed).run()
            self._parsed = msgspec.structs.replace(self._parsed, encoded=encoded)

    async def _look_up_prefix(self) -> None:
        """Learn who has how much of the prompt, where that can make a difference."""
        core = self._core
        servers = core.usable_prefill(set()) if self._features.wants_prefill else []
        if core.prefixes is not None and len(servers) > 1:
            hits = await core.prefixes.hits(self._parsed, self._headers, servers)
            self._features = msgspec.structs.replace(self._features, prefix_tokens=hits)

    async def _decode(self, step: DecodeStep, instance: Instance) -> web.StreamResponse:
        while True:
            self.outcome.decode = instance.name
            with self._core.use(instance) as usage:
                try:
                    answer = await step.first_answer(instance, self._handoff, usage)
                except UpstreamError as error:
                    following = step.next_instance(instance, error, self._handoff)
                else:
                    other = step.next_after_refusal(answer, self._handoff) if answer.status == 503 else None
                    if other is None:
                        return await self._answer(answer, usage)
                    following = other
            if following is not instance:
                self._handoff.moves()
            instance = following

    async def _answer(self, answer: Answer, usage: Usage) -> web.StreamResponse:
        if answer.status < 300:
            self._handoff.taken()
        else:
            self._handoff.give_back(rejected=True)
        if answer.streaming:
            try:
                return await self._stream(answer, usage)
            finally:
                answer.response.close()
        headers = response_headers(answer.response.headers, self.request_id)
        if answer.status < 300:
            self.outcome.done()
        else:
            self.outcome.fail("client_error" if 400 <= answer.status < 500 else "upstream_error")
        if usage.outcome == "cancelled":
            usage.outcome = "done"
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    async def _stream(self, answer: Answer, usage: Usage) -> web.StreamResponse:
        metrics = self._core.metrics
        self.outcome.phase = "streaming"
        headers = response_headers(answer.response.headers, self.request_id)
        self._out = out = web.StreamResponse(status=answer.status, headers=headers)
        self._relay = relay = EventRelay(metrics, self.endpoint)
        await out.prepare(self._request)
        metrics.histogram("first_byte_seconds", self.endpoint).observe(time.perf_counter() - self._arrived)
        usage_outcome = "failed"
        try:
            await relay.run(answer, out)
            usage_outcome = "done"
        except (UpstreamError, StreamBrokenError) as error:
            answer.instance.failed(str(error))
            logger.warning("request %r: the answer broke off: %s", self.request_id, error)
            self.outcome.fail("truncated")
            await out.write(self._last_event(f"the answer broke off: {error}. Send the request again.", 502))
        except (asyncio.CancelledError, ConnectionError):
            usage_outcome = "cancelled"
            raise
        finally:
            usage.outcome = usage_outcome
        await out.write_eof()
        if usage_outcome == "done" and relay.error_seen:
            self.outcome.fail("stream_error")
        elif usage_outcome == "done":
            self.outcome.done()
        return out

    def _last_event(self, message: str, status: int) -> bytes:
        separator = b"" if self._relay is None or self._relay.between_events else b"\n\n"
        return separator + error_event(message, status=status, kind=_kind(status))

    def _failure(self, reason: str, status: int, message: str) -> web.Response:
        self.outcome.fail(reason)
        logger.warning("request %r failed: %s", self.request_id, message)
        body = error_body(message, status=status, kind=_kind(status))
        return web.Response(
            status=status, body=body, headers={**JSON_HEADERS, "X-Request-Id": self.request_id}
        )

    async def _broken_off(self, interruption: Interruption) -> web.StreamResponse:
        """Answer a request that ran into its deadline or into the router's shutdown."""
        if interruption is Interruption.TIMEOUT:
            limit = f"{self._core.options.request_timeout_s:g} s"
            status, message = 504, f"no complete answer within {limit} (router setting request_timeout_s)"
        else:
            status, message = 503, "the router is shutting down: send the request again"
        if self._out is None or not self._out.prepared:
            return self._failure(interruption.value, status, message)
        self.outcome.fail(interruption.value)
        try:
            await asyncio.wait_for(self._say_goodbye(self._out, message, status), LAST_WORDS_S)
        except (TimeoutError, ConnectionError):
            # It is not reading, so it cannot be told. Cutting the connection is what it will notice.
            if self._request.transport is not None:
                self._request.transport.abort()
        return self._out

    async def _say_goodbye(self, out: web.StreamResponse, message: str, status: int) -> None:
        await out.write(self._last_event(message, status))
        await out.write_eof()


def _kind(status: int) -> str:
    return {502: "BadGatewayError", 503: "ServiceUnavailableError", 504: "TimeoutError"}.get(
        status, "InternalServerError"
    )

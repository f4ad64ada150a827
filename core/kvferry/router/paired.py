"""One request's way through prefill and decode servers of SGLang.

SGLang's servers want the same request at the same time, and find each other by three fields in it: where the
prefill server's ranks are registered, and a number that both use for this request. The decode server cannot
compute a prompt itself, so that a prefill that fails ends the request, here at once: the decode server would
wait for it. Only a prefill server that cannot have seen the request is replaced by another one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from kvferry.config.schema import RouterOptions
from kvferry.errors import ConfigError
from kvferry.router.core import Usage, describe
from kvferry.router.decode import Answer, DecodeStep, NoDecodeError
from kvferry.router.exchange import Exchange
from kvferry.router.instances import Instance, Pool, Role
from kvferry.router.prefill import note_trouble
from kvferry.router.protocol import decode_body
from kvferry.router.release import Releaser
from kvferry.router.streaming import Handoff
from kvferry.router.upstream import Trouble, UpstreamError, response_headers

logger = logging.getLogger(__name__)

DEFAULT_BOOTSTRAP_PORT = 8998  # SGLang's own
_ROOM_BITS = 62  # SGLang's rooms are signed; requests with several prompts use the numbers that follow, too


def bootstrap_ports(options: RouterOptions, pool: Pool) -> dict[Instance, int]:
    """Return each prefill server's bootstrap port; empty if the engines are not SGLang's.

    `ConfigError` if the settings do not fit together.
    """
    given, servers = options.bootstrap_ports, pool.prefill
    for name in ("prefill_events", "encode"):
        if options.engine != "vllm" and getattr(options, name):
            raise ConfigError(
                f"router.{name} is for vLLM's servers: leave it out with router.engine {options.engine}"
            )
    if options.engine == "sglang" and options.handoff == "pull":
        raise ConfigError(
            "router.handoff pull is not possible with router.engine sglang: both servers always get the "
            "request together; leave it out"
        )
    if options.engine != "sglang":
        if given:
            raise ConfigError("router.bootstrap_ports is for SGLang's servers: set router.engine to sglang")
        return {}
    if not servers:
        raise ConfigError("SGLang's decode servers compute no prompts: give --prefill, too")
    if given and len(given) != len(servers):
        raise ConfigError(
            f"router.bootstrap_ports has {len(given)} ports and router.prefill {len(servers)} servers: give "
            "one port for each server, in the same order"
        )
    ports = [_port(text) for text in given] or [DEFAULT_BOOTSTRAP_PORT] * len(servers)
    return dict(zip(servers, ports, strict=True))


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16):
        raise ConfigError(f"router.bootstrap_ports has {text!r}, which is no port number")
    return int(text)


class PrefillAnswer(msgspec.Struct):
    """What a prefill server said: an answer, or why there is none."""

    status: int = 0
    headers: Mapping[str, str] = {}
    body: bytes = b""
    error: UpstreamError | None = None

    @property
    def good(self) -> bool:
        """Whether the decode server will get its KV cache."""
        return self.error is None and 200 <= self.status < 300


class PairedHandoff(Handoff):
    """The fields by which the two servers of a request find each other, and the request to one of them."""

    def __init__(self, releaser: Releaser, fields: Mapping[str, Any]) -> None:
        super().__init__(releaser, None)
        self._fields = fields
        self.prefill: asyncio.Task[PrefillAnswer] | None = None

    @property
    def fields(self) -> Mapping[str, Any] | None:
        """What is added to the decode server's body."""
        return self._fields

    def give_back(self, *, rejected: bool) -> None:
        """Nobody waits for the prefill any more: hanging up on the server makes it drop the request."""
        if self.prefill is not None:
            self.prefill.cancel()


class PairedExchange(Exchange):
    """Serves one admitted request by a pair of SGLang's servers."""

    async def _serve(self) -> web.StreamResponse:
        core = self._core
        features = msgspec.structs.replace(self._features, wants_prefill=True)
        unreachable: set[Instance] = set()
        while True:
            usable = core.usable_prefill(unreachable)
            prefill, decode = core.place(features, usable, core.usable_decode(set()))
            if prefill is None:
                why = describe(core.pool.prefill, Role.PREFILL)
                raise NoDecodeError(f"no prefill server can be reached: {why}", 503, "no_prefill_server")
            response = await self._by_pair(prefill, decode)
            if response is not None:
                return response
            unreachable.add(prefill)

    async def _by_pair(self, prefill: Instance, decode: Instance) -> web.StreamResponse | None:
        """Return the response; None if the prefill server cannot be reached."""
        fields = {
            "bootstrap_host": prefill.url.host,
            "bootstrap_port": self._core.bootstrap_ports[prefill],
            "bootstrap_room": secrets.randbits(_ROOM_BITS),
        }
        self._handoff = handoff = PairedHandoff(self._core.releaser, fields)
        body = decode_body(self._parsed, fields)
        handoff.prefill = self._core.releaser.spawn(self._ask_prefill(prefill, body))
        self.outcome.phase, self.outcome.prefill = "decode", prefill.name
        return await self._ask_decode(handoff, decode)

    async def _ask_decode(self, handoff: PairedHandoff, decode: Instance) -> web.StreamResponse | None:
        step = DecodeStep(self._core, self.endpoint, self._headers, self._parsed, self._features)
        while True:
            self.outcome.decode = decode.name
            with self._core.use(decode) as usage:
                try:
                    answer = await self._first_of_both(step, decode, handoff, usage)
                except UpstreamError as error:
                    if (
                        error.trouble is not Trouble.UNREACHABLE
                    ):  # the prefill has met it: it cannot go elsewhere
                        raise NoDecodeError(str(error), 502, error.trouble.value) from error
                    decode = step.next_instance(decode, error, handoff)
                    continue
                if isinstance(answer, Answer):
                    return await self._answer(answer, usage)
            return self._without_prefill(answer)

    async def _first_of_both(
        self, step: DecodeStep, decode: Instance, handoff: PairedHandoff, usage: Usage
    ) -> Answer | PrefillAnswer:
        """Return the decode server's answer, or that of a prefill server which will not serve the request."""
        assert handoff.prefill is not None  # noqa: S101  (set where the handoff is made)
        asked = asyncio.ensure_future(step.first_answer(decode, handoff, usage))
        try:
            await asyncio.wait({asked, handoff.prefill}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() and not handoff.prefill.result().good:
                return handoff.prefill.result()
            return await asked
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.wait({asked})
            if not asked.cancelled():
                asked.exception()  # looked at, so that nobody is told that it was not

    def _without_prefill(self, answer: PrefillAnswer) -> web.Response | None:
        if answer.error is None:
            self.outcome.fail("client_error" if answer.status < 500 else "prefill_error")
            headers = response_headers(answer.headers, self.request_id)
            return web.Response(status=answer.status, body=answer.body, headers=headers)
        if answer.error.trouble is Trouble.UNREACHABLE:
            return None
        raise NoDecodeError(str(answer.error), 502, f"prefill_{answer.error.trouble.value}")

    async def _ask_prefill(self, instance: Instance, body: bytes) -> PrefillAnswer:
        started = time.perf_counter()
        with self._core.use(instance) as usage:
            try:
                answer = await self._read_prefill(instance, body)
            except UpstreamError as error:
                usage.outcome = "failed"
                note_trouble(instance, error)
                self._core.metrics.count("prefill", "failed")
                return PrefillAnswer(error=error)
            usage.outcome = "done" if answer.status < 500 else "failed"
        if answer.status < 500:
            instance.succeeded()
        elif instance.failed(f"answered {answer.status}"):
            logger.warning("prefill server %s: several failures in a row, taking it out", instance.name)
        self._core.metrics.count("prefill", "handed_off" if answer.good else "failed")
        if answer.good:
            self._core.metrics.histogram("prefill_seconds").observe(time.perf_counter() - started)
        return answer

    async def _read_prefill(self, instance: Instance, body: bytes) -> PrefillAnswer:
        headers = CIMultiDict(self._headers)
        headers["Accept-Encoding"] = "identity"
        limit_s = self._core.options.prefill_timeout_s
        answer = await self._core.upstream.ask(instance, self.endpoint, headers, body, limit_s)
        return PrefillAnswer(*answer)

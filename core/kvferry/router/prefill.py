"""The first step of a request: its prompt, on a prefill server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import aiohttp
from multidict import CIMultiDict

from kvferry.errors import ProtocolError
from kvferry.router.core import Core
from kvferry.router.instances import Instance
from kvferry.router.protocol import ParsedRequest, prefill_body, read_handoff
from kvferry.router.scope import Interruption, Scope
from kvferry.router.streaming import Handoff, StreamedHandoff
from kvferry.router.upstream import BodyReader, Trouble, UpstreamError
from kvferry.scheduling import RequestFeatures

if TYPE_CHECKING:
    from kvferry.handoff import StreamAddress

logger = logging.getLogger(__name__)

# How long the rest of an answer is waited for after the client has gone, to learn of its lease.
ORPHAN_TIMEOUT_S = 2.0


class NoHandoffError(Exception):
    """The prefill step yielded nothing to hand off, so the decode server computes the prompt."""

    def __init__(self, reason: str, text: str, *, in_order: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.in_order = in_order  # the server did what it was asked


class PrefillStep:
    """Runs the prefill step of one request."""

    def __init__(
        self,
        core: Core,
        path: str,
        headers: Mapping[str, str],
        parsed: ParsedRequest,
        features: RequestFeatures,
    ) -> None:
        self._core = core
        self._path = path
        # The answer is for us: it has to be readable, so no compression.
        self._headers = CIMultiDict(headers)
        self._headers["Accept-Encoding"] = "identity"
        self._parsed = parsed
        self._features = features

    async def run(self, decode: Instance, first: Instance | None) -> Handoff:
        """Return the hand-off for the decode server; an empty one if that server is to compute the prompt.

        Where the prefill server's transfer engine is known, that is at once, and the prefill goes on. Else
        another prefill server is tried only when the one before cannot have seen the request. Everything that
        goes wrong ends in the decode server answering the request alone, and it says so itself where it is
        the request that is at fault.
        """
        metrics, releaser = self._core.metrics, self._core.releaser
        if self._parsed.bypass is not None:
            metrics.count("prefill", "bypassed")
            metrics.count("prefill_bypasses", self._parsed.bypass)
            return Handoff(releaser, None)
        if not self._core.pool.prefill or (first is None and self._core.usable_prefill(set())):
            return Handoff(releaser, None)  # none configured, or the policy decided to do without
        stream = self._core.streams.begin(first) if first is not None else None
        if first is not None and stream is not None:
            return self._start(first, stream)
        started = time.perf_counter()
        try:
            params = await self._try_each(decode, first)
        except NoHandoffError as error:
            self._fell_back(error.reason, error)
            return Handoff(releaser, None)
        self._handed_off("handed_off", started)
        return self._handoff(params)

    # What depends on the engine's kind; here that of vLLM's connectors.

    def _body(self) -> bytes:
        return prefill_body(self._parsed)

    def _read(self, instance: Instance, answer: bytes) -> dict[str, Any]:
        """Return the hand-off in a good answer. Raises `ProtocolError`, `NoHandoffError` (there is none)."""
        params = read_handoff(answer)
        if params is None:
            raise NoHandoffError(
                "no_handoff",
                f"{instance.name} kept nothing for a hand-off: short prompt, or it does not run "
                'KVFerryConnector with "kv_role":"kv_producer"',
                in_order=True,
            )
        return params

    def _handoff(self, params: dict[str, Any]) -> Handoff:
        return Handoff(self._core.releaser, params)

    def _left(self, response: aiohttp.ClientResponse, reader: BodyReader) -> None:
        """The request ended after the server had begun to answer, so a lease may exist that only this answer
        names.
        """
        self._core.releaser.spawn(_release_orphan(self._core, response, reader))

    def _start(self, instance: Instance, stream: StreamAddress) -> Handoff:
        from kvferry.handoff import build_stream

        handoff = StreamedHandoff(self._core.releaser, build_stream(stream))
        handoff.attach(self._core.releaser.spawn(self._accompany(instance, stream, handoff)))
        return handoff

    async def _accompany(self, instance: Instance, stream: StreamAddress, handoff: StreamedHandoff) -> None:
        """Have a prompt computed that a decode server is reading.

        Nobody else is asked if it fails: the decode server knows of this one only, and computes it itself.
        """
        from kvferry.handoff import stream_order

        started = time.perf_counter()
        try:
            params = await self._ask(instance, prefill_body(self._parsed, stream_order(stream.stream)))
        except UpstreamError as error:
            self._fell_back(error.trouble.value, error)
            handoff.failed()
        except NoHandoffError as error:
            self._fell_back(error.reason, error)
            handoff.failed()
        else:
            if self._core.streams.learn(instance, params, stream):
                self._handed_off("streamed", started)
                return
            self._fell_back("stale_address", f"{instance.name} is not the engine that answered before")
            self._core.releaser.release(params, "aborted")

    def _handed_off(self, outcome: str, started: float) -> None:
        self._core.metrics.count("prefill", outcome)
        self._core.metrics.histogram("prefill_seconds").observe(time.perf_counter() - started)

    def _fell_back(self, reason: str, why: object) -> None:
        self._core.metrics.count("prefill", "fallback")
        self._core.metrics.count("prefill_fallbacks", reason)
        logger.debug("request %r: no hand-off: %s", self._features.request_id, why)

    async def _try_each(self, decode: Instance, chosen: Instance | None) -> dict[str, Any]:
        body = self._body()
        unreachable: set[Instance] = set()
        while chosen is not None:
            params = await self._try_one(chosen, body)
            if params is not None:
                self._core.streams.learn(chosen, params)
                return params
            unreachable.add(chosen)
            chosen, _ = self._core.place(self._features, self._core.usable_prefill(unreachable), [decode])
        reason = "unreachable" if unreachable else "none_usable"
        raise NoHandoffError(reason, "no prefill server can be reached")

    async def _try_one(self, instance: Instance, body: bytes) -> dict[str, Any] | None:
        """Return a server's hand-off, or None if there was no connection; raises `NoHandoffError`."""
        try:
            return await self._ask(instance, body)
        except UpstreamError as error:
            if error.trouble is not Trouble.UNREACHABLE:
                raise NoHandoffError(error.trouble.value, str(error)) from error
            return None

    async def _ask(self, instance: Instance, body: bytes) -> dict[str, Any]:
        with self._core.use(instance) as usage:
            try:
                params = await self._exchange(instance, body)
            except UpstreamError as error:
                usage.outcome = "failed"
                note_trouble(instance, error)
                raise
            except NoHandoffError as error:
                usage.outcome = "done" if error.in_order else "failed"
                raise
            usage.outcome = "done"
            return params

    async def _exchange(self, instance: Instance, body: bytes) -> dict[str, Any]:
        """Send the request and judge the answer, unless the server goes down meanwhile.

        Where a process hangs, its connections stay open: without this, each request would wait for its
        time-out, although the prober knows better.
        """
        with Scope(self._core.options.prefill_timeout_s) as scope:

            def stop_waiting() -> None:
                scope.interrupt(Interruption.DOWN)

            instance.when_down.add(stop_waiting)
            try:
                return await self._send(instance, body)
            except asyncio.CancelledError:
                if not scope.is_only_cause:
                    raise
                scope.absorb()
                waited = scope.interruption is Interruption.TIMEOUT
                why = "no answer in the time allowed" if waited else f"it went down: {instance.last_error}"
                text = f"prefill server {instance.name}: {why}"
                raise UpstreamError(Trouble.TIMEOUT, text) from None
            finally:
                instance.when_down.discard(stop_waiting)

    async def _send(self, instance: Instance, body: bytes) -> dict[str, Any]:
        response = await self._core.upstream.post(instance, self._path, self._headers, body)
        reader = BodyReader(response, instance)
        try:
            answer = await reader.read()
        except asyncio.CancelledError:
            self._left(response, reader)
            raise
        except BaseException:
            response.close()
            raise
        return self._judge(instance, response.status, answer)

    def _judge(self, instance: Instance, status: int, answer: bytes) -> dict[str, Any]:
        """Return the hand-off in a prefill server's answer; raises `NoHandoffError`."""
        if 400 <= status < 500:
            # Most likely the client's fault: the decode server will say so too, as if it had been asked
            # alone. If it was this server's own limit, the request still gets its answer.
            instance.succeeded()
            raise NoHandoffError("rejected", f"{instance.name} answered {status}")
        if not 200 <= status < 300:
            if instance.failed(f"answered {status}"):
                logger.warning("prefill server %s: several failures in a row, taking it out", instance.name)
            raise NoHandoffError("upstream_error", f"{instance.name} answered {status}")
        try:
            params = self._read(instance, answer)
        except ProtocolError as error:
            instance.failed(str(error))
            raise NoHandoffError("malformed", f"{instance.name}: {error}") from error
        except NoHandoffError:
            instance.succeeded()
            raise
        instance.succeeded()
        return params


async def _release_orphan(core: Core, response: aiohttp.ClientResponse, reader: BodyReader) -> None:
    """Read the rest of an answer that nobody waits for any more, and give back the lease it names."""
    try:
        params = read_handoff(await asyncio.wait_for(reader.read(), ORPHAN_TIMEOUT_S))
    except (TimeoutError, UpstreamError, ProtocolError):
        params = None
    finally:
        response.close()
    if params is not None:
        core.releaser.release(params, "aborted")


def note_trouble(instance: Instance, error: UpstreamError) -> None:
    """Let an instance's health know that a request got no usable answer."""
    if error.trouble is Trouble.UNREACHABLE:
        if instance.unreachable(str(error)):
            logger.warning("%s server %s is down: %s", instance.role.value, instance.name, error)
    elif instance.failed(str(error)):
        logger.warning(
            "%s server %s: several failures in a row, taking it out", instance.role.value, instance.name
        )

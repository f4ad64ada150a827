"""The second step of a request: generation, on a decode server, up to the first byte of the answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import aiohttp
import msgspec

from kvferry.errors import KVFerryError
from kvferry.router.core import Core, Usage, describe
from kvferry.router.instances import Instance, Role
from kvferry.router.prefill import note_trouble
from kvferry.router.protocol import ParsedRequest, decode_body
from kvferry.router.streaming import Handoff
from kvferry.router.upstream import BodyReader, Trouble, UpstreamError, read_part
from kvferry.scheduling import RequestFeatures

logger = logging.getLogger(__name__)

# A request after which the connection broke may be the one that brings a server down. It gets one more
# chance, not one per server.
MOST_LOST_ATTEMPTS = 2
SERVICE_UNAVAILABLE = 503


class NoDecodeError(KVFerryError):
    """No decode server took the request. `status` is for the client, `reason` for the failure count."""

    code = "unavailable"

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Answer(msgspec.Struct, kw_only=True):
    """A decode server's answer: whole in `body`, or, if `streaming`, its first part there."""

    instance: Instance
    response: aiohttp.ClientResponse
    body: bytes
    streaming: bool

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.response.status


class DecodeStep:
    """Finds a decode server that answers one request."""

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
        self._headers = headers
        self._parsed = parsed
        self._features = msgspec.structs.replace(features, wants_prefill=False)
        self._tried: set[Instance] = set()
        self._lost = 0

    async def first_answer(self, instance: Instance, handoff: Handoff, usage: Usage) -> Answer:
        """Ask one server. Raises `UpstreamError`, after which nothing of its answer has reached anyone."""
        body = decode_body(self._parsed, handoff.fields)
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._core.upstream.post(instance, self._path, self._headers, body)
            answer = await self._begin(instance, response)
        except UpstreamError as error:
            usage.outcome = "failed"
            note_trouble(instance, error)
            if response is not None:
                response.close()
            raise
        except BaseException:
            # The client has gone: closing the connection makes the engine drop the request.
            if response is not None:
                response.close()
            raise
        if answer.status >= 500:
            usage.outcome = "failed"
            if instance.failed(f"answered {answer.status}"):
                logger.warning("decode server %s: several failures in a row, taking it out", instance.name)
        else:
            instance.succeeded()
        return answer

    async def _begin(self, instance: Instance, response: aiohttp.ClientResponse) -> Answer:
        streaming = response.status < 400 and response.content_type == "text/event-stream"
        if not streaming:
            body = await BodyReader(response, instance).read()
            return Answer(instance=instance, response=response, body=body, streaming=False)
        body = await read_part(response, instance)
        if not body:
            raise UpstreamError(
                Trouble.LOST, f"decode server {instance.name}: the stream ended before it began"
            )
        return Answer(instance=instance, response=response, body=body, streaming=True)

    def next_instance(self, failed: Instance, error: UpstreamError, handoff: Handoff) -> Instance:
        """Choose where to try again after `failed`; raises `NoDecodeError` if that must not or cannot be."""
        if error.trouble is not Trouble.UNREACHABLE:
            # The server may have fetched the blocks, or be about to: nobody else may rely on them.
            handoff.give_back(rejected=False)
        if error.trouble is Trouble.LOST:
            self._lost += 1
        elif error.trouble is not Trouble.UNREACHABLE:
            raise NoDecodeError(str(error), 502, error.trouble.value) from error
        if self._lost >= MOST_LOST_ATTEMPTS:
            raise NoDecodeError(f"{error}; tried {self._lost} times, not again", 502, "lost") from error
        chosen = self._choose_other(failed)
        if chosen is None and error.trouble is Trouble.LOST:
            chosen = failed  # the only server: it may have closed an idle connection, or been restarted
        if chosen is None:
            raise self._exhausted(error) from error
        self._core.metrics.count("decode_retries", error.trouble.value)
        logger.info("request %r: %s; trying %s", self._features.request_id, error, chosen.name)
        return chosen

    def next_after_refusal(self, answer: Answer, handoff: Handoff) -> Instance | None:
        """Choose where to try again after status 503 (not taken), or None to let it stand."""
        handoff.give_back(rejected=True)
        chosen = self._choose_other(answer.instance)
        if chosen is not None:
            self._core.metrics.count("decode_retries", "refused")
        return chosen

    def _choose_other(self, failed: Instance) -> Instance | None:
        self._tried.add(failed)
        left = self._core.usable_decode(self._tried)
        if not left:
            return None
        _, chosen = self._core.place(self._features, [], left)
        return chosen

    def _exhausted(self, error: UpstreamError) -> NoDecodeError:
        if self._lost:
            return NoDecodeError(str(error), 502, "lost")
        return NoDecodeError(
            "no decode server can be reached: "
            + describe(self._core.pool.decode, Role.DECODE)
            + ". Start one of them, or correct --decode.",
            503,
            "no_decode_server",
        )

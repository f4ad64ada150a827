"""The step before the prompt: each image, clip and sound of a request, on an encode server.

An encode server runs a multimodal model's encoder and puts what that makes of a medium into the store, from
where the server that computes the prompt loads it. It gets one medium at a time, so that several servers
share a request, and its answer names the medium as the engines do: that name goes on as `ec_transfer_params`,
for which the next server waits a little longer than for a medium that nobody has promised. Nothing depends on
any of it: what was not encoded here is encoded where the prompt is computed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from multidict import CIMultiDict

from kvferry.router.core import Core
from kvferry.router.instances import Instance
from kvferry.router.prefill import note_trouble
from kvferry.router.protocol import ParsedRequest
from kvferry.router.upstream import Trouble, UpstreamError

logger = logging.getLogger(__name__)

CHAT_PATH = "/v1/chat/completions"  # the only one whose requests carry media
MEDIA = ("image_url", "video_url", "audio_url", "input_audio")
# Besides the medium itself, what an output or its place in the queue depends on.
_KEPT = ("model", "mm_processor_kwargs", "media_io_kwargs", "priority")
MOST_AT_ONCE = 16  # media of one request
# A request is sent on once for each of its media, so that a small one must not become many large ones.
MOST_MEDIA = 256
MOST_KEPT_BYTES = 64 << 10


class EncodeStep:
    """Has the media of one request encoded."""

    def __init__(self, core: Core, headers: Mapping[str, str], parsed: ParsedRequest) -> None:
        self._core = core
        self._headers = CIMultiDict(headers)
        self._headers["Accept-Encoding"] = "identity"  # the answer is for us
        self._fields = parsed.fields
        self._kept = {name: parsed.fields[name] for name in _KEPT if name in parsed.fields}
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    async def run(self) -> dict[str, Any]:
        """Return what encode servers say of the media; what could not be encoded is left out."""
        media = list(dict.fromkeys(media_of(self._fields)))[:MOST_MEDIA]  # one that is there twice, once
        if not media or len(msgspec.json.encode(self._kept)) > MOST_KEPT_BYTES:
            return {}
        answers = await asyncio.gather(*(self._encode(medium) for medium in media))
        return {name: value for answer in answers for name, value in answer.items()}

    def _body(self, medium: bytes) -> bytes:
        """Build the request for a medium: that alone, one token, not streamed."""
        asked = [{"role": "user", "content": [msgspec.Raw(medium)]}]
        return msgspec.json.encode({**self._kept, "messages": asked, "max_tokens": 1, "stream": False})

    async def _encode(self, medium: bytes) -> dict[str, Any]:
        unreachable: set[Instance] = set()
        async with self._room:
            body = self._body(medium)
            while (chosen := self._choose(unreachable)) is not None:
                try:
                    found = await self._ask(chosen, body)
                except UpstreamError as error:
                    note_trouble(chosen, error)
                    logger.debug("a medium is not encoded beforehand: %s", error)
                    if error.trouble is not Trouble.UNREACHABLE:
                        break
                    unreachable.add(chosen)
                else:
                    self._core.metrics.count("encode", "encoded" if found else "refused")
                    return found
        self._core.metrics.count("encode", "failed")
        return {}

    def _choose(self, without: set[Instance]) -> Instance | None:
        """Return the usable server with the fewest requests, in turn among equal ones."""
        pool = self._core.pool
        usable = [one for one in pool.encode if one.usable and one not in without]
        if not usable:
            return None
        pool.encode_turn += 1
        turn = pool.encode_turn % len(usable)
        return min((*usable[turn:], *usable[:turn]), key=lambda one: one.in_flight)

    async def _ask(self, instance: Instance, body: bytes) -> dict[str, Any]:
        """Return the names in a server's answer; none if it took the request for wrong. `UpstreamError`."""
        core = self._core
        with core.use(instance) as usage:
            usage.outcome = "failed"
            status, _, answer = await core.upstream.ask(
                instance, CHAT_PATH, self._headers, body, core.options.encode_timeout_s
            )
            if status >= 500:
                raise UpstreamError(Trouble.MALFORMED, f"{instance.name} answered {status}")
            found = _read(instance, answer) if status < 300 else {}
            instance.succeeded()  # of a refusal the next server will say the same to the client
            usage.outcome = "done"
            return found


def media_of(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Return the part of a chat's messages that is each medium, as JSON."""
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and (part.get("type") in MEDIA):
                yield msgspec.json.encode(part)


class _EncodeAnswer(msgspec.Struct):
    ec_transfer_params: dict[str, Any] | None = None


def _read(instance: Instance, answer: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer, type=_EncodeAnswer).ec_transfer_params or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"{instance.name}: the answer cannot be read: {error}"
        raise UpstreamError(Trouble.MALFORMED, text) from error

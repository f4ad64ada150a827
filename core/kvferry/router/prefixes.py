"""What each prefill server has of a prompt in its cache: the engines' events, and a request's tokens.

Events name tokens. A prompt that is given as text is tokenized by a prefill server (`/tokenize`), in the time
allowed; a request whose tokens cannot be learned is placed as if nobody had any of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from multidict import CIMultiDict

from kvferry.config import RouterOptions
from kvferry.errors import ConfigError, InvalidArgumentError
from kvferry.index import PrefixIndex
from kvferry.router.events import EventFeed, EventSource
from kvferry.router.instances import Instance, Pool
from kvferry.router.metrics import RouterMetrics
from kvferry.router.protocol import ParsedRequest
from kvferry.router.upstream import BodyReader, Upstream, UpstreamError

logger = logging.getLogger(__name__)

TOKENIZE_PATH = "/tokenize"
# Fields that decide what the tokens of a prompt are, as the tokenizing server takes them.
_TEXT_FIELDS = ("model", "prompt", "add_special_tokens")
_CHAT_FIELDS = (
    "model",
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "mm_processor_kwargs",
)


class _Tokens(msgspec.Struct):
    tokens: list[int]


class Prefixes:
    """Belongs to one event loop; close it in the end. `hits` never raises but for cancellation."""

    def __init__(
        self, options: RouterOptions, pool: Pool, upstream: Upstream, metrics: RouterMetrics
    ) -> None:
        """Begin to listen. Raises `ConfigError`, or `UnsupportedError` if ZeroMQ is not installed."""
        self._timeout_s = options.prefix_timeout_s
        self._upstream, self._metrics = upstream, metrics
        self.index = PrefixIndex([one.name for one in pool.prefill])
        self._feed = EventFeed(_sources(options, pool), self.index)
        self._published: dict[tuple[str, str], int] = {}

    async def hits(
        self, parsed: ParsedRequest, headers: Mapping[str, str], servers: Sequence[Instance]
    ) -> dict[str, int]:
        """Return how many of the prompt's first tokens each prefill server has, by its URL.

        `servers`: those that may be asked to tokenize.
        """
        tokens = _given_tokens(parsed.fields)
        if tokens is None and servers:
            tokens = await self._tokenize(parsed.fields, headers, servers[0])
        if tokens is None:
            self._metrics.count("prefix_lookups", "unknown")
            return {}
        salt = parsed.fields.get("cache_salt")
        try:
            hits = self.index.hits(tokens, model=parsed.model, salt=salt if isinstance(salt, str) else "")
        except InvalidArgumentError:  # no token ids: the engine will say so
            self._metrics.count("prefix_lookups", "unknown")
            return {}
        self._metrics.count("prefix_lookups", "hit" if any(hits.values()) else "miss")
        return hits

    def problems(self) -> list[str]:
        """Whose events do not come, and what that means, in sentences."""
        return self._feed.problems()

    def publish(self) -> None:
        """Bring the metrics of the index up to date."""
        for (name, event), count in dict(self._feed.counts).items():
            counter = self._metrics.registry.counter("kvferry_router_kv_events_total").labels(name, event)
            counter.inc(count - self._published.get((name, event), 0))
            self._published[name, event] = count
        for name, blocks in self.index.blocks().items():
            self._metrics.gauge("prefix_blocks", name).set(blocks)
            self._metrics.gauge("prefix_complete", name).set(int(self.index.engines[name].complete))

    async def close(self) -> None:
        """Stop listening."""
        await asyncio.to_thread(self._feed.close)

    async def _tokenize(
        self, fields: Mapping[str, Any], headers: Mapping[str, str], server: Instance
    ) -> list[int] | None:
        question = _question(fields)
        if question is None:
            return None
        plain = CIMultiDict(headers)
        plain["Accept-Encoding"] = "identity"
        try:
            async with asyncio.timeout(self._timeout_s):
                body = msgspec.json.encode(question)
                response = await self._upstream.post(server, TOKENIZE_PATH, plain, body)
                try:
                    answer = await BodyReader(response, server).read()
                finally:
                    response.close()
            return msgspec.json.decode(answer, type=_Tokens).tokens if response.status == 200 else None
        except (TimeoutError, UpstreamError, msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.debug("%s did not tokenize a prompt: %s", server.name, error)
            return None


def _sources(options: RouterOptions, pool: Pool) -> list[EventSource]:
    events, replays = options.prefill_events, options.prefill_replays
    if len(events) != len(pool.prefill):
        raise ConfigError(
            f"router.prefill_events has {len(events)} addresses and router.prefill {len(pool.prefill)} "
            "servers: give one for each, in the same order"
        )
    if replays and len(replays) != len(events):
        raise ConfigError(
            f"router.prefill_replays has {len(replays)} addresses and router.prefill_events {len(events)}: "
            "give as many, or none"
        )
    answers = replays or [""] * len(events)
    return [
        EventSource(one.name, endpoint, replay)
        for one, endpoint, replay in zip(pool.prefill, events, answers, strict=True)
    ]


def _given_tokens(fields: Mapping[str, Any]) -> list[int] | None:
    """Return the prompt, if it is given as token ids."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if isinstance(prompt, list) and all(type(each) is int for each in prompt):
        return prompt
    return None


def _question(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what to ask a tokenizing server, or None if its answer would not be the prompt's tokens."""
    if fields.get("truncate_prompt_tokens") is not None:
        return None
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if isinstance(prompt, str):
        return {**{name: fields[name] for name in _TEXT_FIELDS if name in fields}, "prompt": prompt}
    messages = fields.get("messages")
    if not isinstance(messages, list) or not all(_is_text(each) for each in messages):
        return None
    return {name: fields[name] for name in _CHAT_FIELDS if name in fields}


def _is_text(message: Any) -> bool:
    """Whether a message has no images or sounds: how many tokens they take, only the engine knows."""
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return isinstance(message, dict) and (content is None or isinstance(content, str))

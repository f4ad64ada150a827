"""KV cache events as engines publish them (vLLM's `--kv-events-config`), decoded and told to a chain index.

An engine's events name blocks by its own hashes, which differ between processes and algorithms. They bring
the tokens along, so each block is given a key of our own, by which the caches of all instances compare.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from kvferry.errors import InvalidArgumentError, ProtocolError
from kvferry.index.chain_index import ChainIndex
from kvferry.index.keys import ContentSpan, KeyIdentity, KeySpace

EngineHash = bytes | int

MAX_BATCH_BYTES = 64 << 20
# Key spaces kept at hand: salts and adapters are named by clients.
_SPACES = 1024
# Where blocks of the index lie; what an engine keeps elsewhere (host memory, disk) is no hit on its device.
_ON_DEVICE = (None, "GPU")
# KV cache groups whose blocks stay as long as the prompt is cached; windows and states keep an end of it.
_WHOLE_PROMPT = (None, "full_attention", "mla_attention", "sink_full_attention")


class BlockStored(msgspec.Struct, tag=True, frozen=True):
    """Blocks that follow one another became reusable."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, frozen=True):
    """Blocks were evicted."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True):
    """The cache was emptied."""


class EventBatch(msgspec.Struct, array_like=True, frozen=True):
    """What happened in one step of an engine, in order."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(EventBatch)


def decode_batch(payload: bytes | memoryview) -> EventBatch:
    """Decode and check one message. Raises `ProtocolError` for anything that is not such a batch."""
    if len(payload) > MAX_BATCH_BYTES:
        raise ProtocolError(f"a batch of KV events has {len(payload)} bytes, the limit is {MAX_BATCH_BYTES}")
    try:
        batch = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a batch of KV events cannot be read: {error}") from error
    for event in batch.events:
        if isinstance(event, BlockStored):
            _check(event)
    return batch


def _check(event: BlockStored) -> None:
    if not 1 <= event.block_size <= 65535:
        raise ProtocolError(f"a KV event has blocks of {event.block_size} tokens")
    if event.extra_keys is not None and len(event.extra_keys) != len(event.block_hashes):
        raise ProtocolError("a KV event has not one entry of extra keys for each block")


class EventKeys:
    """The keys that events and prompts are given; one for all instances that shall be compared. Thread-safe.

    The hash is keyed with a random secret: nobody outside this process can aim at a block's key.
    """

    def __init__(self) -> None:
        secret = os.urandom(32)

        def make(lora: str, salt: str, group: int, block_tokens: int) -> KeySpace:
            identity = KeyIdentity(lora=lora, salt=salt, group=group, block_tokens=block_tokens)
            return KeySpace(identity, algorithm="xxh3", secret=secret)

        self._spaces = functools.lru_cache(_SPACES)(make)

    def space(self, *, lora: str = "", salt: str = "", group: int = 0, block_tokens: int) -> KeySpace:
        """Return the key space of one adapter, salt, KV cache group and block size."""
        return self._spaces(lora, salt, group, block_tokens)


class EngineBlocks:
    """The blocks of one engine as its events tell. Changed by one thread at a time; reading is free.

    `complete`: nothing that the engine holds is missing. Otherwise a subset is known, so that hits found are
    real ones still.
    """

    def __init__(self, index: ChainIndex, instance: int, keys: EventKeys) -> None:
        self._index = index
        self._instance = instance
        self._keys = keys
        self._known: dict[tuple[int, EngineHash], bytes] = {}
        self.complete = False
        self.groups: dict[
            int, int
        ] = {}  # KV cache groups and the tokens of their blocks; replaced, not changed
        self.adapters: frozenset[str] = frozenset()
        self.orphans = 0

    def clear(self, *, complete: bool) -> None:
        """Forget everything; `complete`: because the engine holds nothing."""
        self._index.cleared(self._instance)
        self._known.clear()
        self.complete = complete

    def apply(self, batch: EventBatch) -> None:
        """Take one batch in. Raises `ProtocolError` for events that contradict themselves."""
        removed: list[tuple[int, EngineHash]] = []
        for event in batch.events:
            if isinstance(event, BlockRemoved):
                if event.medium in _ON_DEVICE:
                    removed += [(event.group_idx or 0, each) for each in event.block_hashes]
                continue
            self._remove(removed)
            removed = []
            if isinstance(event, AllBlocksCleared):
                self.clear(complete=True)
            elif event.medium in _ON_DEVICE and event.kv_cache_spec_kind in _WHOLE_PROMPT:
                self._store(event)
        self._remove(removed)

    def references(self, hashes: Iterable[EngineHash], group: int = 0) -> list[int]:
        """Return how many copies of each block the index has this engine hold; for tests and inspection."""
        wanted = [self._known.get((group, each)) for each in hashes]
        return [0 if key is None else int(self._index.references(self._instance, [key])[0]) for key in wanted]

    @property
    def known_hashes(self) -> set[tuple[int, EngineHash]]:
        """The blocks that are known, by KV cache group and the engine's own hash."""
        return set(self._known)

    def _store(self, event: BlockStored) -> None:
        if len(event.token_ids) != len(event.block_hashes) * event.block_size:
            raise ProtocolError(
                f"a KV event has {len(event.token_ids)} tokens for {len(event.block_hashes)} blocks of "
                f"{event.block_size}"
            )
        group = event.group_idx or 0
        if self.groups.get(group, event.block_size) != event.block_size:
            return  # part of a block, kept besides whole ones
        parent: bytes | None = None
        if event.parent_block_hash is not None:
            parent = self._known.get((group, event.parent_block_hash))
            if parent is None:  # it was stored before we listened, so nothing can be said of what follows it
                self.orphans += 1
                return
        keys = self._keys_of(event, group, parent)
        self._index.stored(self._instance, keys, parent=parent)
        self._known.update(zip([(group, each) for each in event.block_hashes], keys, strict=True))
        self._note(event, group)

    def _note(self, event: BlockStored, group: int) -> None:
        if group not in self.groups:
            self.groups = {**self.groups, group: event.block_size}
        if event.lora_name and event.lora_name not in self.adapters:
            self.adapters |= {event.lora_name}

    def _keys_of(self, event: BlockStored, group: int, parent: bytes | None) -> list[bytes]:
        salt, spans = _extras(event)
        try:
            space = self._keys.space(
                lora=event.lora_name or "", salt=salt, group=group, block_tokens=event.block_size
            )
            rows = space.keys(np.array(event.token_ids, np.int32), parent=parent, spans=spans)
        except (InvalidArgumentError, OverflowError) as error:
            raise ProtocolError(f"a KV event makes no keys: {error}") from error
        joined = rows.tobytes()
        return [joined[start : start + 16] for start in range(0, len(joined), 16)]

    def _remove(self, blocks: Sequence[tuple[int, EngineHash]]) -> None:
        keys = {each: key for each in blocks if (key := self._known.get(each)) is not None}
        if not keys:
            return
        self._index.removed(self._instance, [keys[each] for each in blocks if each in keys])
        left = self._index.references(self._instance, list(keys.values()))
        for each, count in zip(keys, left, strict=True):
            if count == 0:
                del self._known[each]


def _extras(event: BlockStored) -> tuple[str, list[ContentSpan]]:
    """Return the salt of the chain that begins here, and what else the blocks' bytes depend on.

    The engine's order for each block: adapter, pairs of a medium and its offset, salt (the first block of a
    prompt only), digests of embeddings.
    """
    salt, spans = "", []
    for number, extras in enumerate(event.extra_keys or ()):
        rest = list(extras or ())
        if event.lora_name and rest and rest[0] == event.lora_name:
            del rest[0]
        if number == 0 and event.parent_block_hash is None:
            salt = next((each for each in rest if isinstance(each, str)), "")
            rest = [each for each in rest if not isinstance(each, str)]
        if rest:
            name = msgspec.msgpack.encode(rest)
            spans.append(ContentSpan(number * event.block_size, event.block_size, name))
    return salt, spans

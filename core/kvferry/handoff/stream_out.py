"""The producer's side of streams: what of a prefill under way is readable, told to whoever follows it.

The engine's step only posts what it did; everything else happens in one thread, which owns the table. A
stream's blocks belong to the running request, then, once it has finished, to its lease. When the engine takes
the blocks of a running request away and begins anew, the generation grows, and followers drop what they read.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from kvferry.errors import KVFerryError
from kvferry.handoff.messages import (
    MAX_BLOCKS_TOLD,
    Finished,
    HandoffMessage,
    Mark,
    Progress,
    ReleaseReason,
    StreamAborted,
    StreamCancel,
    Subscribe,
)
from kvferry.handoff.params import RemotePrefill
from kvferry.handoff.producer import LeaseTable

logger = logging.getLogger(__name__)

# How long a follower waits for a prefill that its engine has not heard of, and how long a cancelled name is
# kept: the two requests set out together, so that one is late by queueing and a step at most.
UNOPENED_S = 20.0
MAX_STREAMS = 16384
MAX_UNOPENED = (
    MAX_STREAMS // 2
)  # of them, those that only peers have named: whoever sends many names blocks these
MAX_FOLLOWERS = 1024  # of one stream: ranks of a decode engine, or of one after the other


class Chunk(msgspec.Struct, frozen=True):
    """What a step computes of a streamed prefill: all tokens before `end_token` are complete in a layer when
    the step has written it. `blocks` continue the generation's list; a new generation begins it anew."""

    stream: str
    generation: int
    blocks: tuple[int, ...]
    end_token: int


class Opening(msgspec.Struct, frozen=True):
    """A request to prefill that is to be streamed."""

    stream: str
    digest: str


class Ending(msgspec.Struct, frozen=True):
    """A streamed prefill is over: finished and leased (`remote`), or not to be finished, and why."""

    stream: str
    generation: int
    remote: RemotePrefill | None
    why: str = ""


class _Follower:
    """What a decode engine's rank has been told."""

    def __init__(self, digest: str, layers: int) -> None:
        self.digest = digest
        self.sequence = 0
        self.begin_anew(layers)

    def begin_anew(self, layers: int) -> None:
        self.blocks = 0
        self.ends = [0] * layers

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence - 1


class _Stream:
    def __init__(self, layers: int, until: float | None) -> None:
        self.until = until  # when to forget it; None: its request lives
        self.digest: str | None = None  # of the prompt; None until the request is known
        self.generation = 0
        self.blocks: list[int] = []
        self.ends = [0] * layers  # complete tokens, by layer
        self.ending: Ending | None = None
        self.cancelled: ReleaseReason | None = None
        self.followers: dict[int, _Follower] = {}  # by peer


class StreamTable:
    """The streams of one worker of a prefill engine. Belongs to one thread.

    `send` sends a message to a peer by its handle, or raises KVFerryError. `leases` ends the lease of a
    finished prefill that nobody wants any more.
    """

    def __init__(
        self,
        layers: int,
        leases: LeaseTable,
        send: Callable[[int, HandoffMessage], None],
        *,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layers = layers
        self._leases = leases
        self._send = send
        self._lease_s = lease_s
        self._clock = clock
        self._streams: dict[str, _Stream] = {}
        self._unopened = 0  # streams that the engine has not heard of
        self._running: list[tuple[str, _Stream, int]] = []  # the present step's chunks
        self._dirty: set[str] = set()
        self._counts: Counter[str] = Counter()

    # What the engine does

    def open(self, opening: Opening) -> None:
        """The engine has got the request. With too many of them, it is handed off without being announced."""
        stream = self._streams.get(opening.stream)
        if stream is None:
            if len(self._streams) >= MAX_STREAMS:
                self._counts["streams_refused"] += 1
                return
            stream = self._streams[opening.stream] = _Stream(self._layers, None)
        elif stream.digest is None:
            self._unopened -= 1
        else:
            self._counts["duplicate_notices"] += 1
            return
        stream.digest, stream.until = opening.digest, None
        self._counts["streams_opened"] += 1
        for peer in list(stream.followers):
            self._check_digest(opening.stream, stream, peer)

    def begin_step(self, chunks: Sequence[Chunk]) -> None:
        """A step begins that computes these."""
        self._running = []
        for chunk in chunks:
            stream = self._streams.get(chunk.stream)
            if stream is None or stream.digest is None or stream.ending is not None:
                self._counts["unknown_notices"] += 1
                continue
            if chunk.generation != stream.generation:
                stream.generation = chunk.generation
                stream.blocks = []
                stream.ends = [0] * self._layers
                for follower in stream.followers.values():
                    follower.begin_anew(self._layers)
            stream.blocks.extend(chunk.blocks)
            self._running.append((chunk.stream, stream, chunk.end_token))
            self._dirty.add(chunk.stream)

    def layer_written(self, layer: int) -> None:
        """The present step has written this layer for all its tokens."""
        for name, stream, end_token in self._running:
            stream.ends[layer] = end_token
            self._dirty.add(name)

    def end_step(self) -> None:
        """The present step has written every layer."""
        for name, stream, end_token in self._running:
            stream.ends = [end_token] * self._layers
            self._dirty.add(name)
        self._running = []

    def finish(self, ending: Ending) -> None:
        """The request is over. Its lease, if any, has been issued."""
        stream = self._streams.get(ending.stream)
        if stream is None or stream.ending is not None:
            self._counts["unknown_notices"] += 1
            return
        self._running = [one for one in self._running if one[1] is not stream]
        stream.ending = ending
        stream.until = self._clock() + self._lease_s
        if ending.remote is None:
            self._counts["streams_aborted"] += 1
        else:
            self._counts["streams_finished"] += 1
            if stream.cancelled is not None:
                self._leases.release(ending.remote.address.lease, stream.cancelled)
        self._dirty.add(ending.stream)

    # What peers ask

    def subscribe(self, peer: int, message: Subscribe) -> None:
        """A decode engine's rank wants to follow; a repetition begins from the start."""
        stream = self._named_by_peer(message.stream)
        if stream is None:
            self._tell_one(peer, StreamAborted(message.stream, "too many prefills are followed here"))
            return
        stream.followers[peer] = _Follower(message.digest, self._layers)
        self._counts["streams_followed"] += 1
        if stream.cancelled is not None:
            self._abort(message.stream, stream, peer, "the request was cancelled")
        elif len(stream.followers) > MAX_FOLLOWERS:
            self._abort(message.stream, stream, peer, "too many follow this prefill")
        elif stream.digest is not None:
            self._check_digest(message.stream, stream, peer)

    def cancel(self, peer: int, message: StreamCancel) -> None:
        """Nobody wants the blocks: the followers are told, but for the one who says so."""
        stream = self._named_by_peer(message.stream)
        if stream is None:
            return
        if stream.cancelled is not None:
            self._counts["duplicate_notices"] += 1
            return
        stream.cancelled = message.reason
        self._counts["streams_cancelled"] += 1
        if stream.ending is not None and stream.ending.remote is not None:
            self._leases.release(stream.ending.remote.address.lease, message.reason)
        stream.followers.pop(peer, None)
        for follower in list(stream.followers):
            self._abort(message.stream, stream, follower, "the request was cancelled")

    # Now and then

    def flush(self) -> bool:
        """Tell the followers what is new; False, since nothing is left to be told then."""
        dirty, self._dirty = self._dirty, set()
        for name in dirty:
            stream = self._streams.get(name)
            if stream is not None and stream.digest is not None:
                for peer in list(stream.followers):
                    self._tell_news(name, stream, peer)
        return False

    def expire(self) -> None:
        """Forget what is over, and tell followers of prefills that never came."""
        now = self._clock()
        over = [
            name for name, stream in self._streams.items() if stream.until is not None and stream.until <= now
        ]
        for name in over:
            stream = self._streams[name]
            for peer in list(stream.followers) if stream.digest is None else ():
                self._counts["streams_unopened"] += 1
                why = f"the prefill engine did not get the request within {UNOPENED_S:g} s"
                self._abort(name, stream, peer, why)
            del self._streams[name]
            if stream.digest is None:
                self._unopened -= 1

    def take_counts(self) -> dict[str, int]:
        """Return what happened since the last call, by name."""
        counts, self._counts = dict(self._counts), Counter()
        return counts

    def __len__(self) -> int:
        """How many streams are known."""
        return len(self._streams)

    def _named_by_peer(self, name: str) -> _Stream | None:
        """Return a stream, made if unknown: its request, its follower and its end come in any order. None if
        there are too many; what is under way goes on."""
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) >= MAX_STREAMS or self._unopened >= MAX_UNOPENED:
                self._counts["streams_refused"] += 1
                return None
            stream = self._streams[name] = _Stream(self._layers, self._clock() + UNOPENED_S)
            self._unopened += 1
        return stream

    def _check_digest(self, name: str, stream: _Stream, peer: int) -> None:
        if stream.followers[peer].digest != stream.digest:
            self._abort(name, stream, peer, "the prefill engine computes another prompt, adapter or image")
        else:
            self._dirty.add(name)

    def _abort(self, name: str, stream: _Stream, peer: int, why: str) -> None:
        stream.followers.pop(peer, None)
        self._tell(stream, peer, StreamAborted(name, why[:200]))

    def _tell_news(self, name: str, stream: _Stream, peer: int) -> None:
        ending, follower = stream.ending, stream.followers[peer]
        if ending is not None and ending.remote is None:
            self._abort(name, stream, peer, ending.why)
            return
        for message in self._news(name, stream, follower):
            if not self._tell(stream, peer, message):
                return
        if ending is not None and ending.remote is not None:
            self._tell_end(name, stream, peer, ending)

    def _news(self, name: str, stream: _Stream, follower: _Follower) -> list[Progress]:
        """The messages about what was not told yet: first blocks, a limited number in each, then marks."""
        found = []
        while len(stream.blocks) - follower.blocks > MAX_BLOCKS_TOLD:
            part = stream.blocks[follower.blocks : follower.blocks + MAX_BLOCKS_TOLD]
            found.append(Progress(name, stream.generation, follower.next_sequence(), tuple(part)))
            follower.blocks += len(part)
        layers: dict[int, list[int]] = {}
        for layer, (told, end) in enumerate(zip(follower.ends, stream.ends, strict=True)):
            if end > told:
                layers.setdefault(end, []).append(layer)
        rest = tuple(stream.blocks[follower.blocks :])
        if rest or layers:
            marks = tuple(Mark(end, tuple(which)) for end, which in sorted(layers.items()))
            found.append(Progress(name, stream.generation, follower.next_sequence(), rest, marks))
        follower.blocks = len(stream.blocks)
        follower.ends = list(stream.ends)
        return found

    def _tell_end(self, name: str, stream: _Stream, peer: int, ending: Ending) -> None:
        """Name the lease; with the blocks, unless they are those that were announced."""
        remote, follower = ending.remote, stream.followers.pop(peer)
        if remote is None:
            return
        address = remote.address
        announced = ending.generation == stream.generation and remote.block_ids == (tuple(stream.blocks),)
        if not announced and sum(len(ids) for ids in remote.block_ids) > MAX_BLOCKS_TOLD:
            why = "the prompt has more blocks than one message may name"
            self._tell(stream, peer, StreamAborted(name, why))
            return
        message = Finished(
            name,
            ending.generation,
            follower.next_sequence(),
            address.lease,
            remote.num_tokens,
            address.digest,
            address.lease_s,
            None if announced else remote.block_ids,
        )
        self._tell(stream, peer, message)

    def _tell(self, stream: _Stream, peer: int, message: HandoffMessage) -> bool:
        """Send a message; a follower that cannot be told will notice by itself, and nobody waits for it."""
        told = self._tell_one(peer, message)
        if not told:
            stream.followers.pop(peer, None)
        return told

    def _tell_one(self, peer: int, message: HandoffMessage) -> bool:
        try:
            self._send(peer, message)
        except KVFerryError as error:
            self._counts["streams_untold"] += 1
            logger.debug("could not tell follower %s of a stream: %s", peer, error)
            return False
        return True

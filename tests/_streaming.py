"""A prefill engine that streams and a decode engine that follows, on fake engines; jobs run when told to."""

from __future__ import annotations

from collections.abc import Callable

from _handoff import BLOCK_TOKENS, LAYERS, Clock, Decode, Prefill
from kvferry.handoff import (
    Chunk,
    Ending,
    MessageLoop,
    Opening,
    StreamAddress,
    StreamLoad,
    StreamReceiver,
    StreamRequest,
    StreamTable,
    content_digest,
)
from kvferry.handoff.messages import StreamCancel, Subscribe, encode_message
from kvferry.handoff.params import LeaseAddress, RemotePrefill
from kvferry.testing import FakeNetwork

STREAM_TIMEOUT_S = 60.0


def stream_id(number: int) -> str:
    return f"{number:032x}"


def digest_of(number: int) -> str:
    return f"{number:08x}"


class Jobs:
    """What was posted to a thread, in order."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def post(self, job: Callable[[], object]) -> None:
        self.waiting.append(job)

    def run(self, count: int | None = None) -> None:
        while self.waiting and (count is None or count > 0):
            self.waiting.pop(0)()
            count = None if count is None else count - 1


class StreamingPrefill(Prefill):
    """`sent`: every message to a follower, for playing it again."""

    def __init__(self, network: FakeNetwork, clock: Clock, **options) -> None:
        super().__init__(network, clock, **options)
        self.jobs = Jobs()
        self.sent: list[tuple[int, bytes]] = []
        self.streams = StreamTable(LAYERS, self.table, self._send, lease_s=self.lease_s, clock=clock)
        self.loop = MessageLoop(self.engine, table=self.table, streams=self._on_message)
        self.engine.on_message = self.loop.dispatch

    def _send(self, peer: int, message) -> None:
        body = encode_message(message)
        self.engine.send(peer, body)
        self.sent.append((peer, body))

    def _on_message(self, peer: int, message) -> None:
        if isinstance(message, Subscribe):
            self.jobs.post(lambda: self.streams.subscribe(peer, message))
        elif isinstance(message, StreamCancel):
            self.jobs.post(lambda: self.streams.cancel(peer, message))

    def run(self, count: int | None = None) -> None:
        self.jobs.run(count)
        self.streams.flush()

    def open(self, number: int, digest: str | None = None) -> None:
        opening = Opening(stream_id(number), digest_of(number) if digest is None else digest)
        self.jobs.post(lambda: self.streams.open(opening))

    def begin_step(self, *chunks: Chunk) -> None:
        self.jobs.post(lambda: self.streams.begin_step(chunks))

    def layer_written(self, layer: int) -> None:
        self.jobs.post(lambda: self.streams.layer_written(layer))

    def end_step(self) -> None:
        self.jobs.post(self.streams.end_step)

    def compute(
        self,
        number: int,
        blocks: tuple[int, ...],
        end: int,
        *,
        told: int = 0,
        generation: int = 0,
        value=None,
    ) -> None:
        """One step that computes tokens up to `end`, all layers; `told` blocks are known already."""
        self.begin_step(Chunk(stream_id(number), generation, blocks[told:], end))
        for block in blocks:
            self.memory.fill(block, value or block + 1)
        for layer in range(LAYERS):
            self.layer_written(layer)
        self.end_step()

    def lease(self, number: int, blocks: tuple[int, ...], tokens: int, generation: int = 0) -> Ending:
        """Lease a finished prompt's blocks; the ending is to be posted."""
        digest = digest_of(number)
        lease = self.issuer.issue(content_digest((blocks,), tokens, digest))
        address = LeaseAddress(
            lease, (self.engine.node_id,), (self.engine.endpoint,), digest, lease_s=self.lease_s
        )
        return Ending(stream_id(number), generation, RemotePrefill(address, (blocks,), tokens))

    def end(self, ending: Ending, owner: str = "") -> None:
        if ending.remote is not None:
            self.admit(ending.remote.address.lease, owner)
        self.jobs.post(lambda: self.streams.finish(ending))


class FollowingDecode(Decode):
    def __init__(self, network: FakeNetwork, clock: Clock, **options) -> None:
        super().__init__(network, clock, **options)
        self.jobs = Jobs()
        self.receiver = StreamReceiver(
            self.engine,
            self.geometry,
            {region.name: region.id for region in self.engine.regions()},
            self.peers,
            self.consumer,
            chores=self.chores,
            post=self.jobs.post,
            timeout_s=STREAM_TIMEOUT_S,
            transfer_timeout_s=30.0,
            clock=clock,
        )
        self.loop = MessageLoop(self.engine, control=self.control, streams=self._on_message)
        self.engine.on_message = self.loop.dispatch

    def _on_message(self, peer: int, message) -> None:
        self.jobs.post(lambda: self.receiver.on_message(peer, message))

    def run(self, count: int | None = None) -> None:
        self.jobs.run(count)
        self.receiver.flush()

    def watch(self, request_id: str, number: int, prefill: Prefill, tokens: int) -> None:
        address = StreamAddress(stream_id(number), (prefill.engine.node_id,), (prefill.engine.endpoint,))
        request = StreamRequest(request_id, address, digest_of(number), tokens)
        self.jobs.post(lambda: self.receiver.watch(request))

    def allocate(self, request_id: str, blocks: tuple[int, ...], tokens: int, first_block: int = 0) -> None:
        first = first_block * BLOCK_TOKENS
        load = StreamLoad(request_id, (blocks,), first, tokens - first)
        self.jobs.post(lambda: self.receiver.load(load))


def settle(prefill: StreamingPrefill, decode: FollowingDecode) -> None:
    """Let all threads of both sides run until nothing is left to do."""
    for _ in range(8):
        decode.run()
        decode.chores.run()
        decode.run()
        prefill.run()
        decode.run()
        decode.loads.run()

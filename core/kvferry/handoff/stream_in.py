"""The consumer's side of streams: reads a prompt's KV cache while its prefill is being computed.

What is read early is only a head start. A stream ends in the load that every hand-off ends in: when the
producer says that the prompt is finished and leased, the consumer reads what is missing, gives the lease
back, and trusts all of it only if the lease had been held until then. Whatever goes wrong before that fails
the load.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from kvferry.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    KVFerryError,
    PeerLostError,
    ProtocolError,
    StaleError,
)
from kvferry.handoff.consumer import Consumer, Executor, LoadRequest
from kvferry.handoff.control import SEND_TIMEOUT_S
from kvferry.handoff.early import EarlyPulls
from kvferry.handoff.early_reader import Announced, EarlyReader
from kvferry.handoff.leases import parse_lease_id
from kvferry.handoff.messages import (
    Finished,
    HandoffMessage,
    Progress,
    ReleaseReason,
    StreamAborted,
    StreamCancel,
    Subscribe,
    encode_message,
)
from kvferry.handoff.params import LeaseAddress, RemotePrefill, StreamAddress
from kvferry.handoff.peers import KnownPeer, PeerBook
from kvferry.handoff.sources import SourceMap, Target
from kvferry.layout import KVGeometry

if TYPE_CHECKING:
    from kvferry.transfer import Engine

logger = logging.getLogger(__name__)


class StreamRequest(msgspec.Struct, frozen=True):
    """A prompt of `num_tokens` tokens that a prefill engine is about to compute."""

    request_id: str
    address: StreamAddress
    digest: str
    num_tokens: int


class StreamLoad(msgspec.Struct, frozen=True):
    """The blocks, by group, that receive tokens [first_token, first_token + num_tokens) of a stream."""

    request_id: str
    local_block_ids: tuple[tuple[int, ...], ...]
    first_token: int
    num_tokens: int


class _Incoming:
    def __init__(self, request: StreamRequest, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.started_at = 0.0
        self.load: StreamLoad | None = None
        self.early: EarlyPulls | None = None
        self.known: KnownPeer | None = None
        self.generation = 0
        self.sequence = 0
        self.blocks: list[int] = []
        self.ends: dict[int, int] = {}  # tokens announced, by layer
        self.remote: RemotePrefill | None = None
        self.error: KVFerryError | None = None
        self.dirty = False


class StreamReceiver:
    """The streams of one worker of a decode engine. All methods belong to one thread, which `post` reaches.

    `chores` connects and settles in the background. `timeout_s`: how long a prefill may take, its queueing
    included, before the prompt is computed here.
    """

    def __init__(
        self,
        engine: Engine,
        geometry: KVGeometry,
        local_regions: Mapping[str, int],
        peers: PeerBook,
        consumer: Consumer,
        *,
        chores: Executor,
        post: Callable[[Callable[[], object]], None],
        timeout_s: float,
        transfer_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._geometry = geometry
        self._sources = SourceMap(geometry, local_regions)
        self._peers = peers
        self._consumer = consumer
        self._chores = chores
        self._post = post
        self._timeout_s = timeout_s
        self._clock = clock
        self._streams: dict[str, _Incoming] = {}  # by request
        self._names: dict[str, str] = {}  # request by stream
        self._counts: Counter[str] = Counter()
        self._reader = EarlyReader(engine, geometry, local_regions, transfer_timeout_s)

    # What the engine orders

    def watch(self, request: StreamRequest) -> None:
        """Follow a prefill from now on; blocks for it may come later."""
        if request.request_id in self._streams:
            self._counts["duplicate_loads"] += 1
            return
        incoming = _Incoming(request, self._clock() + self._timeout_s)
        self._streams[request.request_id] = incoming
        if self._names.setdefault(request.address.stream, request.request_id) != request.request_id:
            # Its blocks will be ordered all the same, and an order without a result would keep them for ever.
            self._fail(incoming, InvalidArgumentError("another request follows the prefill of that name"))
            return
        self._counts["streams_watched"] += 1
        if not self._chores.submit(lambda: self._connect(request)):
            self._fail(incoming, CancelledError("the engine is shutting down"))

    def load(self, load: StreamLoad) -> None:
        """There are blocks: read what is announced; the result comes through the consumer, once."""
        incoming = self._streams.get(load.request_id)
        if incoming is None or incoming.load is not None:
            self._counts["duplicate_loads"] += 1
            return
        incoming.load, incoming.started_at, incoming.dirty = load, self._clock(), True
        group = self._geometry.groups[0]
        incoming.early = EarlyPulls(
            load.local_block_ids[0],
            group.block_stride or group.block_bytes,
            self._geometry.tokens_of(0),
            load.first_token,
        )
        if incoming.error is not None:
            self._fail(incoming, incoming.error)
        elif incoming.remote is not None:
            self._hand_over(incoming, incoming.remote)

    def release(self, request_id: str, reason: ReleaseReason) -> None:
        """The request needs no load after all."""
        incoming = self._streams.get(request_id)
        if incoming is None or incoming.load is not None:
            self._counts["late_notices"] += 1
            return
        self._forget(incoming)
        if incoming.remote is not None:
            self._consumer.release(request_id, incoming.remote.address, reason)
        else:
            self._cancel_at_producer(incoming, reason)

    def cancel(self, request_id: str) -> None:
        """The request was aborted; its result still comes, once local memory is quiet."""
        incoming = self._streams.get(request_id)
        if incoming is None:
            self._consumer.cancel(request_id)  # not a stream, or one that is in its last load
        elif incoming.load is not None:
            self._cancel_at_producer(incoming, "aborted")
            self._fail(incoming, CancelledError("the request was aborted"))

    # What the producer says

    def on_message(self, peer: int, message: HandoffMessage) -> None:
        """Act on a message about a stream; one that is late, unknown or repeated is counted and ignored."""
        if not isinstance(message, Progress | Finished | StreamAborted):
            self._counts["unknown_notices"] += 1
            return
        incoming = self._streams.get(self._names.get(message.stream, ""))
        if incoming is None or incoming.known is None or incoming.known.peer.handle != peer:
            self._counts["unknown_notices"] += 1
            return
        if incoming.error is not None or incoming.remote is not None:
            self._counts["late_notices"] += 1
            return
        if isinstance(message, StreamAborted):
            self._counts["streams_aborted_by_producer"] += 1
            self._fail(incoming, StaleError(f"the prefill was given up: {message.why}"))
        elif message.sequence < incoming.sequence:
            self._counts["duplicate_notices"] += 1
        elif message.sequence > incoming.sequence or message.generation < incoming.generation:
            self._give_up(incoming, ProtocolError("a message about the prefill's progress is missing"))
        else:
            incoming.sequence += 1
            self._take_in(incoming, message)

    def _take_in(self, incoming: _Incoming, message: Progress | Finished) -> None:
        if message.generation > incoming.generation:
            incoming.generation, incoming.blocks, incoming.ends = message.generation, [], {}
            if incoming.early is not None:
                incoming.early.begin_anew()
            self._counts["streams_begun_anew"] += 1
        if isinstance(message, Finished):
            self._finished(incoming, message)
            return
        incoming.blocks.extend(message.blocks)
        limit = incoming.request.num_tokens
        for mark in message.marks:
            for layer in mark.layers:
                incoming.ends[layer] = min(limit, max(mark.end_token, incoming.ends.get(layer, 0)))
        incoming.dirty = True
        if len(incoming.blocks) > limit:
            self._give_up(
                incoming, ProtocolError("the prefill engine names more blocks than there are tokens")
            )

    def _finished(self, incoming: _Incoming, message: Finished) -> None:
        request = incoming.request
        try:
            parse_lease_id(message.lease_id)
        except InvalidArgumentError as error:
            self._give_up(incoming, error)
            return
        address = LeaseAddress(
            message.lease_id,
            request.address.node_ids,
            request.address.endpoints,
            message.digest,
            message.lease_s,
            request.address.pp_size,
        )
        announced = (tuple(incoming.blocks),)
        blocks = announced if message.block_ids is None else message.block_ids
        if blocks != announced:  # then what was announced is not what the lease is for
            incoming.blocks, incoming.ends = [], {}
            if incoming.early is not None:
                incoming.early.begin_anew()
        incoming.remote = remote = RemotePrefill(
            address, blocks, message.num_tokens, request_id=request.request_id
        )
        if message.digest != request.digest or message.num_tokens != request.num_tokens:
            incoming.remote = None
            self._consumer.release(request.request_id, address, "rejected")
            self._fail(incoming, InvalidArgumentError("the prefill engine computed another prompt"))
        elif incoming.load is not None:
            self._hand_over(incoming, remote)
        else:
            self._consumer.watch(request.request_id, address)

    # Now and then

    def flush(self) -> bool:
        """Read what was announced; True while something announced waits for transfers under way."""
        waiting = False
        for incoming in list(self._streams.values()):
            if incoming.dirty:
                incoming.dirty = not self._pull(incoming)
                waiting = waiting or incoming.dirty
        return waiting

    def tick(self) -> None:
        """Fail the streams whose producer is gone or whose time is over."""
        now = self._clock()
        for incoming in list(self._streams.values()):
            if incoming.error is not None or incoming.remote is not None:
                continue
            if incoming.known is not None and not incoming.known.peer.alive:
                where = incoming.known.peer.endpoint
                self._fail(
                    incoming, PeerLostError(f"prefill engine at {where} was lost before it had finished")
                )
            elif now >= incoming.deadline:
                self._give_up(
                    incoming,
                    DeadlineExceededError(
                        f"request {incoming.request.request_id} was not prefilled within "
                        f"{self._timeout_s:.1f} s (handoff.stream_timeout_s)"
                    ),
                )

    def close(self) -> None:
        """Give up all streams; the results of those that were being read still come."""
        for incoming in list(self._streams.values()):
            self._give_up(incoming, CancelledError("the engine is shutting down"))

    def take_counts(self) -> dict[str, int]:
        """Return what happened since the last call, by name."""
        counts, self._counts = dict(self._counts), Counter()
        return counts

    def __len__(self) -> int:
        """How many streams are followed."""
        return len(self._streams)

    # Connecting

    def _connect(self, request: StreamRequest) -> None:
        """In the background: reach the producer."""
        error: KVFerryError | None = None
        known: KnownPeer | None = None
        try:
            # The peer book's own connect timeout is the bound that matters here.
            known = self._peers.get(*self._target(request.address).node, timeout_s=self._timeout_s)
        except KVFerryError as failure:
            error = failure
        self._post(lambda: self._connected(request, known, error))

    def _target(self, address: StreamAddress) -> Target:
        """The rank to follow: the first one that we read from. Raises InvalidArgumentError."""
        return self._sources.targets(address)[0]

    def _connected(self, request: StreamRequest, known: KnownPeer | None, error: KVFerryError | None) -> None:
        incoming = self._streams.get(request.request_id)
        if incoming is None or incoming.request is not request:
            if known is not None:
                self._send(known, StreamCancel(request.address.stream, "aborted"))
            return
        if incoming.error is not None:
            return
        incoming.known = known
        if known is None:
            self._fail(incoming, error or PeerLostError("the prefill engine was lost"))
        elif not self._send(known, Subscribe(request.address.stream, request.digest)):
            self._fail(incoming, PeerLostError(f"prefill engine at {known.peer.endpoint} was lost"))

    def _send(self, known: KnownPeer, message: HandoffMessage) -> bool:
        try:
            self._engine.send(known.peer, encode_message(message), timeout_s=SEND_TIMEOUT_S)
        except KVFerryError as error:
            logger.debug("could not tell prefill engine %s: %s", known.peer.endpoint, error)
            return False
        return True

    def _cancel_at_producer(self, incoming: _Incoming, reason: ReleaseReason) -> None:
        """Tell all ranks that we would have read from, as far as they are connected; the rest find out by the
        lease's end. One that is still being connected is told then."""
        if incoming.known is None:
            return
        message = StreamCancel(incoming.request.address.stream, reason)
        for target in self._sources.targets(incoming.request.address):
            known = self._peers.connected(*target.node)
            if known is not None:
                self._send(known, message)

    # Reading

    def _pull(self, incoming: _Incoming) -> bool:
        """Read what is announced and not read yet; False if it has to wait for transfers under way."""
        early, load, known = incoming.early, incoming.load, incoming.known
        if early is None or load is None or known is None or incoming.error is not None:
            return True
        end_token = load.first_token + load.num_tokens
        announced = Announced(load.local_block_ids, incoming.blocks, incoming.ends, end_token)
        try:
            started = self._reader.read(known, early, announced)
        except KVFerryError as error:
            self._give_up(incoming, error)
            return True
        if started:
            self._counts["early_pulls"] += started
            logger.debug("early request=%s ends=%s", load.request_id, sorted(set(incoming.ends.values())))
        return started is not None

    # Ending

    def _hand_over(self, incoming: _Incoming, remote: RemotePrefill) -> None:
        """The rest is a load like any other."""
        load, early = incoming.load, incoming.early
        if load is None or early is None:
            return
        if incoming.dirty and not self._pull(incoming):
            self._counts["late_pulls"] += 1  # the link is slower than the prefill
        if incoming.error is not None:
            return
        self._forget(incoming)
        self._counts["streams_handed_over"] += 1
        logger.debug("finished request=%s in_flight=%d", load.request_id, early.in_flight())
        self._consumer.submit(
            LoadRequest(
                load.request_id,
                remote,
                load.local_block_ids,
                load.first_token,
                load.num_tokens,
                early=early,
            )
        )

    def _give_up(self, incoming: _Incoming, error: KVFerryError) -> None:
        """Fail a stream, and tell the producer."""
        self._cancel_at_producer(incoming, "aborted")
        self._fail(incoming, error)

    def _fail(self, incoming: _Incoming, error: KVFerryError) -> None:
        """Without blocks the error is kept for the load that will come; else it is the load's result."""
        incoming.error = error
        load, early = incoming.load, incoming.early
        if load is None or early is None:
            return
        self._forget(incoming)
        known = incoming.known
        endpoint = known.peer.endpoint if known is not None else incoming.request.address.endpoints[0]
        self._consumer.fail(load.request_id, early, error, incoming.started_at, str(endpoint))

    def _forget(self, incoming: _Incoming) -> None:
        request = incoming.request
        self._streams.pop(request.request_id, None)
        if self._names.get(request.address.stream) == request.request_id:
            del self._names[request.address.stream]

"""Handing a request's KV cache from a prefill engine (producer) to a decode engine (consumer).

Engine-neutral: an engine's connector translates its own events into these calls. The consumer pulls: it reads
the producer's blocks one-sided, gives the lease back, and trusts what it read only if the lease had been held
until then. It may begin while the prompt is still being computed, see `streams`.
"""

from __future__ import annotations

from kvferry.handoff.consumer import Consumer, ConsumerLimits, LoadRequest, LoadResult
from kvferry.handoff.control import ControlClient
from kvferry.handoff.leases import LeaseAuthority, LeaseIssuer
from kvferry.handoff.orders import GiveBack, HandoffOrders, Watch
from kvferry.handoff.params import (
    LeaseAddress,
    RemotePrefill,
    StreamAddress,
    build_remote_prefill,
    build_stream,
    content_digest,
    names_stream,
    parse_lease_address,
    parse_remote_prefill,
    parse_stream,
    parse_stream_order,
    prompt_digest,
    stream_order,
    wants_remote_decode,
    wants_remote_prefill,
)
from kvferry.handoff.peers import PeerBook
from kvferry.handoff.producer import LeaseTable
from kvferry.handoff.releaser import LeaseReleaser
from kvferry.handoff.scheduler import HandoffScheduler, Prompt, WorkerAddress
from kvferry.handoff.service import HandoffWorker, MessageLoop
from kvferry.handoff.stream_in import StreamLoad, StreamReceiver, StreamRequest
from kvferry.handoff.stream_out import Chunk, Ending, Opening, StreamTable
from kvferry.handoff.streams import Streams
from kvferry.handoff.throttle import WarningThrottle
from kvferry.handoff.totals import totals_of

__all__ = [
    "Chunk",
    "Consumer",
    "ConsumerLimits",
    "ControlClient",
    "Ending",
    "GiveBack",
    "HandoffOrders",
    "HandoffScheduler",
    "HandoffWorker",
    "LeaseAddress",
    "LeaseAuthority",
    "LeaseIssuer",
    "LeaseReleaser",
    "LeaseTable",
    "LoadRequest",
    "LoadResult",
    "MessageLoop",
    "Opening",
    "PeerBook",
    "Prompt",
    "RemotePrefill",
    "StreamAddress",
    "StreamLoad",
    "StreamReceiver",
    "StreamRequest",
    "StreamTable",
    "Streams",
    "WarningThrottle",
    "Watch",
    "WorkerAddress",
    "build_remote_prefill",
    "build_stream",
    "content_digest",
    "names_stream",
    "parse_lease_address",
    "parse_remote_prefill",
    "parse_stream",
    "parse_stream_order",
    "prompt_digest",
    "stream_order",
    "totals_of",
    "wants_remote_decode",
    "wants_remote_prefill",
]

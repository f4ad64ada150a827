"""Handing a request's KV cache from a prefill engine (producer) to a decode engine (consumer).

Engine-neutral: an engine's connector translates its own events into these calls. The consumer pulls: it reads
the producer's blocks one-sided, gives the lease back, and trusts what it read only if the lease had been held
until then.
"""

from __future__ import annotations

from kvferry.handoff.consumer import Consumer, ConsumerLimits, LoadRequest, LoadResult
from kvferry.handoff.control import ControlClient
from kvferry.handoff.leases import LeaseAuthority, LeaseIssuer
from kvferry.handoff.orders import GiveBack, HandoffOrders, Watch
from kvferry.handoff.params import (
    LeaseAddress,
    RemotePrefill,
    build_remote_prefill,
    content_digest,
    parse_lease_address,
    parse_remote_prefill,
    prompt_digest,
    wants_remote_decode,
    wants_remote_prefill,
)
from kvferry.handoff.peers import PeerBook
from kvferry.handoff.producer import LeaseTable
from kvferry.handoff.releaser import LeaseReleaser
from kvferry.handoff.scheduler import HandoffScheduler, Prompt, WorkerAddress
from kvferry.handoff.service import HandoffWorker, MessageLoop
from kvferry.handoff.throttle import WarningThrottle

__all__ = [
    "Consumer",
    "ConsumerLimits",
    "ControlClient",
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
    "PeerBook",
    "Prompt",
    "RemotePrefill",
    "WarningThrottle",
    "Watch",
    "WorkerAddress",
    "build_remote_prefill",
    "content_digest",
    "parse_lease_address",
    "parse_remote_prefill",
    "prompt_digest",
    "wants_remote_decode",
    "wants_remote_prefill",
]

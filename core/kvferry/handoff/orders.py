"""What an engine's scheduler tells its workers about hand-offs in one step. Plain data that pickles."""

from __future__ import annotations

import msgspec

from kvferry.handoff.consumer import LoadRequest
from kvferry.handoff.leases import LeaseAuthority
from kvferry.handoff.messages import ReleaseReason
from kvferry.handoff.params import LeaseAddress
from kvferry.handoff.stream_in import StreamLoad, StreamRequest
from kvferry.handoff.stream_out import Chunk, Ending, Opening


class Watch(msgspec.Struct, frozen=True):
    """A request that waits for its turn: keep its lease alive."""

    request_id: str
    address: LeaseAddress


class GiveBack(msgspec.Struct, frozen=True):
    """A lease that will not be used, or has been used up."""

    request_id: str
    address: LeaseAddress
    reason: ReleaseReason


class HandoffOrders(msgspec.Struct, frozen=True):
    """One step's orders. `authority` and `issued_through` describe the lease ids given out so far."""

    authority: LeaseAuthority
    issued_through: int
    leases: tuple[tuple[str, str], ...] = ()  # lease id, request id
    watches: tuple[Watch, ...] = ()
    loads: tuple[LoadRequest, ...] = ()
    give_backs: tuple[GiveBack, ...] = ()
    cancels: tuple[str, ...] = ()
    # streams that we compute
    openings: tuple[Opening, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    endings: tuple[Ending, ...] = ()
    # streams that we follow
    follows: tuple[StreamRequest, ...] = ()
    stream_loads: tuple[StreamLoad, ...] = ()
    stream_releases: tuple[tuple[str, ReleaseReason], ...] = ()  # request id, reason
    own_streams: tuple[str, ...] = ()  # of our own, which nobody needs to read

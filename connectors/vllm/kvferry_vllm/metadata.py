"""What the scheduler half tells the worker half each step. Plain data, picklable, free of vLLM."""

from __future__ import annotations

import msgspec

from kvferry.handoff import LeaseAddress, LeaseAuthority, LoadRequest
from kvferry.handoff.messages import ReleaseReason


class Watch(msgspec.Struct, frozen=True):
    """A request that waits for its turn: keep its lease alive."""

    request_id: str
    address: LeaseAddress


class GiveBack(msgspec.Struct, frozen=True):
    """A lease that will not be used, or has been used up."""

    request_id: str
    address: LeaseAddress
    reason: ReleaseReason


class StepOrders(msgspec.Struct, frozen=True):
    """One step's orders. `authority` and `issued_through` describe the lease ids given out so far."""

    authority: LeaseAuthority
    issued_through: int
    leases: tuple[tuple[str, str], ...] = ()  # lease id, request id
    watches: tuple[Watch, ...] = ()
    loads: tuple[LoadRequest, ...] = ()
    give_backs: tuple[GiveBack, ...] = ()
    cancels: tuple[str, ...] = ()

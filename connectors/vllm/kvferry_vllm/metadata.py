"""What the scheduler half tells the worker half each step. Plain data, picklable, free of vLLM."""

from __future__ import annotations

import msgspec

from kvferry.handoff import HandoffOrders
from kvferry.pool import PoolOrders


class StepOrders(msgspec.Struct, frozen=True):
    """One step's orders. `pool` None: this engine does not pool."""

    handoff: HandoffOrders
    pool: PoolOrders | None = None

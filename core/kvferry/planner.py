"""What of a prompt comes from where, and each step's orders to the workers: the scheduler's side of an engine
that hands off, pools, or both.

For an engine's loop: nothing here blocks for longer than `pool.lookup.GRACE_S`. Engine-neutral: a connector
translates its engine's requests and blocks into ids, counts of tokens and lists of block numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvferry.handoff import HandoffScheduler
from kvferry.pool import PoolFront
from kvferry.worker import StepOrders

BlockIds = Sequence[Sequence[int]]  # a request's blocks, by KV cache group


class _Plan(NamedTuple):
    """Where a request's tokens come from: the first ones are computed here already, up to `pooled` they come
    from the pool, the rest from a prefill engine."""

    computed: int
    pooled: int


class StepPlanner:
    """One per engine core. Not thread-safe: it belongs to the core's loop.

    What concerns one of them only is said to `handoff`, the caller's own, or to the pool's scheduler.
    """

    def __init__(self, handoff: HandoffScheduler) -> None:
        self._handoff = handoff
        self._front: PoolFront | None = None
        self._plans: dict[str, _Plan] = {}  # as of the last question

    def set_pool(
        self,
        front: PoolFront,
        hold: Callable[[Sequence[int]], None],
        release: Callable[[Sequence[int]], None],
        *,
        max_held: int,
    ) -> None:
        """Pool from now on; closed with this planner. See `PoolScheduler.bind`."""
        front.scheduler.bind(hold, release, max_held=max_held)
        self._front = front

    @property
    def pools(self) -> bool:
        """Whether there is a pool."""
        return self._front is not None

    def arrived(self, request_id: str, hashes: Sequence[bytes]) -> None:
        """Begin to ask the pool for a prompt; `hashes` are the engine's, of its whole blocks."""
        if self._front is not None:
            self._front.scheduler.arrived(request_id, hashes)

    def matched_tokens(
        self, request_id: str, hashes: Sequence[bytes], *, num_tokens: int, num_computed: int
    ) -> int | None:
        """Return how many tokens of a prompt of `num_tokens`, beyond the first `num_computed` that are here,
        to load; None: ask again later. May be asked every step while the request waits.
        """
        pooled = 0
        if self._front is not None:
            found = self._front.scheduler.matched(request_id, hashes)
            if found is None:
                return None
            pooled = found
        total = max(pooled, self._handoff.offered_tokens(request_id))
        wanted = total - num_computed
        # An engine computes the last prompt token itself, so that alone is not worth a load.
        if wanted <= 0 or (wanted == 1 and total == num_tokens):
            return 0
        self._plans[request_id] = _Plan(num_computed, max(pooled, num_computed))
        return wanted

    def after_alloc(self, request_id: str, num_external: int, block_ids: Callable[[], BlockIds]) -> None:
        """Order the load of `num_external` tokens, as `matched_tokens` said, into the blocks just allocated,
        or give back a lease that is not needed. `block_ids` returns all of the request's blocks."""
        plan = self._plans.get(request_id)
        if plan is None or num_external <= 0:
            self._handoff.give_back(request_id, "done")
            return
        blocks = block_ids()
        total = plan.computed + num_external
        pooled = min(plan.pooled, total)
        if pooled > plan.computed and self._front is not None:
            self._front.scheduler.load(request_id, plan.computed, pooled - plan.computed, blocks)
        if total > pooled:
            self._handoff.load(request_id, pooled, total - pooled, blocks)
        else:
            self._handoff.give_back(request_id, "done")

    def pooled_tokens(self, request_id: str) -> int:
        """Return how many tokens the request's last load takes from the pool."""
        plan = self._plans.get(request_id)
        return 0 if plan is None else plan.pooled - plan.computed

    @property
    def saves_due(self) -> Mapping[str, int]:
        """By request, with how many tokens there is something to save: before, `computes` need not be called,
        as in most steps of an answer."""
        return {} if self._front is None else self._front.scheduler.due

    def computes(
        self, request_id: str, hashes: Sequence[bytes], num_tokens: int, block_ids: Callable[[], BlockIds]
    ) -> None:
        """Save what is full after the step being planned, which brings the request to `num_tokens`."""
        if self._front is not None:
            self._front.scheduler.computed(request_id, hashes, num_tokens, block_ids)

    def finished(self, request_id: str, hashes: Sequence[bytes] = (), num_tokens: int = 0) -> None:
        """Forget a request that ended with `num_tokens` computed; its lease and its saves go on. To be called
        after `HandoffScheduler.lease`, if that is called."""
        self._plans.pop(request_id, None)
        if self._front is not None:
            self._front.scheduler.finished(request_id, hashes, num_tokens)
        self._handoff.finished(request_id)

    def loads_ended(self, received: set[str], failed: set[str]) -> None:
        """Take note of loads that the workers reported, failed ones in both sets."""
        self._handoff.loads_ended(received)
        if self._front is not None:
            self._front.scheduler.loads_ended(received, failed)

    def saves_ended(self, ended: Mapping[int, int]) -> None:
        """Let go of the blocks of ended saves; by job, how many workers reported it."""
        if self._front is not None:
            self._front.scheduler.saves_ended(ended)

    @property
    def saves_pending(self) -> bool:
        """Whether blocks are held for saves."""
        return self._front is not None and self._front.scheduler.saves_pending

    def forget_pool(self) -> bool:
        """Remove this engine's blocks from the pool; whether that succeeded."""
        return self._front is None or self._front.forget()

    def take_orders(self, *, idle: bool) -> StepOrders:
        """Return this step's orders and begin anew. `idle`: the step computes nothing; it then waits a moment
        for the pool's answers: an engine that asks again and again takes the processor from who answers."""
        if self._front is None:
            return StepOrders(self._handoff.take_orders(), None, idle)
        orders = StepOrders(self._handoff.take_orders(), self._front.scheduler.take_orders(), idle)
        if idle and not orders.loads:
            self._front.scheduler.pause()
        return orders

    def take_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return what was counted since the last call, by hand-offs and by the pool."""
        pool = {} if self._front is None else self._front.scheduler.take_counts()
        return self._handoff.take_counts(), pool

    def close(self) -> None:
        """Leave the pool; idempotent."""
        if self._front is not None:
            self._front.close()

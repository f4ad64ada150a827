"""The scheduler half: translates vLLM's requests and blocks for hand-offs and the pool.

Runs in the engine core's loop: nothing here blocks, and nothing a client sends makes it raise. Free of vLLM
imports; requests and blocks are vLLM's, used by attribute.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvferry.handoff import HandoffScheduler, Prompt, WorkerAddress, wants_remote_decode
from kvferry.planner import StepPlanner
from kvferry.pool import PoolFront
from kvferry.worker import StepOrders

_HANDED_OFF = "FINISHED_LENGTH_CAPPED"  # a prefill request has max_tokens=1


class EngineFacts(NamedTuple):
    """What the scheduler half must know of its engine."""

    engine_id: str
    block_tokens: tuple[int, ...]  # by KV cache group
    is_producer: bool
    is_consumer: bool
    lease_s: float
    save_generated: bool = True  # to the pool, not only prompts
    announces: bool = True  # what of a prompt is computed may be read before all of it is
    withheld: int = 0  # last prompt tokens that a prefill leaves to the decode engine


class SchedulerHalf:
    """One per engine core. Not thread-safe: it belongs to the core's loop. What needs no translation is asked
    of `planner`."""

    def __init__(self, facts: EngineFacts) -> None:
        self._facts = facts
        self._handoff = HandoffScheduler(
            facts.engine_id,
            block_tokens=facts.block_tokens,
            is_consumer=facts.is_consumer,
            lease_s=facts.lease_s,
            withheld=facts.withheld,
        )
        self.planner = StepPlanner(self._handoff)
        self._idle = False  # whether the step computes nothing
        self._requests: dict[str, Any] = {}  # those whose blocks may be saved
        self._streamed: dict[str, Any] = {}  # those whose progress is announced

    def set_workers(self, workers: Mapping[Any, WorkerAddress], *, stages: int = 1) -> None:
        """Take the workers' addresses by rank, of all pipeline stages; until then nothing is handed off."""
        self._handoff.set_workers([workers[rank] for rank in sorted(workers)], stages=stages)

    def set_pool(self, front: PoolFront, block_pool: Any, max_held: float) -> None:
        """Pool from now on. `block_pool`: vLLM's, which keeps blocks that are being saved; a share of
        `max_held` of them at most."""

        def hold(block_ids: Sequence[int]) -> None:
            block_pool.touch([block_pool.blocks[index] for index in block_ids])

        def release(block_ids: Sequence[int]) -> None:
            block_pool.free_blocks(block_pool.blocks[index] for index in reversed(block_ids))

        self.planner.set_pool(front, hold, release, max_held=int(max_held * len(block_pool.blocks)))

    def on_new_request(self, request: Any) -> None:
        """Look at a request's `kv_transfer_params`, and begin to ask the pool for its prompt."""
        self._withhold(request)
        refused = bool(getattr(request, "abort_immediately", False))
        prompt = _prompt(request)
        self._handoff.arrived(prompt, refused=refused)
        if wants_remote_decode(request.kv_transfer_params):
            self._handoff.stream(prompt, refused=refused or not self._facts.is_producer)
            if self._facts.announces and self._handoff.is_streamed(request.request_id):
                self._streamed[request.request_id] = request
        if self.planner.pools and not refused:
            self._requests[request.request_id] = request
            self.planner.arrived(request.request_id, request.block_hashes)

    def _withhold(self, request: Any) -> None:
        """Shorten a prompt that is prefilled for another engine; vLLM has not looked at it yet."""
        count = self._facts.withheld
        wanted = self._facts.is_producer and wants_remote_decode(request.kv_transfer_params)
        if count and wanted and request.prompt_token_ids is not None and request.num_prompt_tokens > count:
            del request.prompt_token_ids[-count:]
            del request._all_token_ids[-count:]
            request.num_prompt_tokens -= count
            request.max_tokens = 1  # an answer to a shortened prompt means nothing

    def matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many prompt tokens beyond `num_computed_tokens` to load; None: ask again later.

        Asked every step while the request waits.
        """
        wanted = self.planner.matched_tokens(
            request.request_id,
            request.block_hashes if self.planner.pools else (),
            num_tokens=request.num_prompt_tokens,
            num_computed=num_computed_tokens,
        )
        return wanted, bool(wanted)

    def after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Order the load into the blocks just allocated, or give back a lease that is not needed."""
        self.planner.after_alloc(request.request_id, num_external_tokens, blocks.get_block_ids)

    def scheduled(self, scheduler_output: Any) -> None:
        """Save the blocks that this step fills, and announce them."""
        self._idle = not scheduler_output.num_scheduled_tokens
        if not self.planner.pools and not self._streamed:
            return
        state, due = scheduler_output.kv_connector_block_state, self.planner.saves_due
        for request_id, count in scheduler_output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is not None and request.num_computed_tokens + count >= due.get(request_id, 0):
                tokens = self._saved_tokens(request, request.num_computed_tokens + count)
                block_ids = functools.partial(state.get_block_ids, request_id)
                self.planner.computes(request_id, request.block_hashes, tokens, block_ids)
            request = self._streamed.get(request_id)
            if request is not None:
                block_ids = functools.partial(state.get_block_ids, request_id)
                end_token = min(request.num_computed_tokens + count, request.num_prompt_tokens)
                self._handoff.computes(request_id, end_token, request.num_preemptions, block_ids)

    def request_finished(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether the blocks must stay, and the dictionary for the decode engine."""
        self._streamed.pop(request.request_id, None)
        params = None
        if self._hands_off(request, block_ids):
            num_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            params = self._handoff.lease(_prompt(request), num_tokens, block_ids)
        saved: tuple[Sequence[bytes], int] = ((), 0)
        if self._requests.pop(request.request_id, None) is not None:
            saved = (request.block_hashes, self._saved_tokens(request, request.num_computed_tokens))
        self.planner.finished(request.request_id, *saved)
        return params is not None, params

    def take_orders(self) -> StepOrders:
        """Return this step's orders and begin anew."""
        return self.planner.take_orders(idle=self._idle)

    def _saved_tokens(self, request: Any, computed: int) -> int:
        return computed if self._facts.save_generated else min(computed, request.num_prompt_tokens)

    def _hands_off(self, request: Any, block_ids: Sequence[Sequence[int]]) -> bool:
        return (
            wants_remote_decode(request.kv_transfer_params)
            and self._facts.is_producer
            and request.status.name == _HANDED_OFF
            and self._handoff.is_known
            and any(block_ids)
            and request.prompt_token_ids is not None
            and request.num_computed_tokens > 0
        )


def _prompt(request: Any) -> Prompt:
    """A request as hand-offs see it: what its KV cache depends on besides tokens has a tag each."""
    extras = []
    if request.lora_request is not None:
        extras.append(f"lora={request.lora_request.lora_name}")
    extras.extend(
        f"media={feature.identifier}@{feature.mm_position.offset}" for feature in request.mm_features
    )
    return Prompt(
        request.request_id,
        request.prompt_token_ids,
        request.num_prompt_tokens,
        extras,
        request.kv_transfer_params,
    )

"""What the scheduler half orders for prompts that are read while they are computed."""

from __future__ import annotations

import pickle
import secrets
from types import SimpleNamespace

import pytest

from _vllm_shapes import BLOCK, Blocks, Status, request
from kvferry.handoff import StreamAddress, WorkerAddress, build_stream, stream_order
from kvferry_vllm.scheduler import EngineFacts, SchedulerHalf

STREAM = "5" * 32
NODE = "7" * 32
ENDPOINT = "127.0.0.1:4321"
TOKENS = 70


def half(*, producer=True, consumer=True, announces=True, withheld=0) -> SchedulerHalf:
    facts = EngineFacts("engine", (BLOCK,), producer, consumer, 30.0, announces=announces, withheld=withheld)
    scheduler = SchedulerHalf(facts)
    scheduler.set_workers({0: WorkerAddress(secrets.token_hex(16), ENDPOINT)})
    return scheduler


def prompt() -> list[int]:
    return list(range(100, 100 + TOKENS))


def step(scheduler, asked, count: int, blocks: list[int]):
    """What vLLM hands over when it has planned a step."""
    state = SimpleNamespace(get_block_ids=lambda request_id: (blocks,))
    scheduler.scheduled(
        SimpleNamespace(num_scheduled_tokens={asked.request_id: count}, kv_connector_block_state=state)
    )
    asked.num_computed_tokens += count
    return scheduler.take_orders().handoff


class TestProducer:
    def ordered(self, scheduler):
        params = {"do_remote_decode": True, **stream_order(STREAM)}
        asked = request("p1", prompt(), params, num_preemptions=0)
        scheduler.on_new_request(asked)
        return asked

    def test_chunks_then_the_lease(self):
        scheduler = half()
        asked = self.ordered(scheduler)
        first = step(scheduler, asked, 40, [4, 5])
        assert [opening.stream for opening in first.openings] == [STREAM]
        assert [(c.generation, c.blocks, c.end_token) for c in first.chunks] == [(0, (4, 5), 40)]
        second = step(scheduler, asked, 30, [4, 5, 6, 7])
        assert [(c.generation, c.blocks, c.end_token) for c in second.chunks] == [(0, (6,), 70)]
        asked.status = Status.FINISHED_LENGTH_CAPPED
        held, _ = scheduler.request_finished(asked, ([4, 5, 6, 7],))
        assert held
        orders = pickle.loads(pickle.dumps(scheduler.take_orders())).handoff
        (ending,) = orders.endings
        assert ending.remote.block_ids == ((4, 5, 6),)
        assert ending.remote.address.lease == orders.leases[0][0]

    def test_a_name_that_is_in_use_is_not_announced_again(self):
        scheduler = half()
        asked = self.ordered(scheduler)
        again = request("p2", prompt(), {"do_remote_decode": True, **stream_order(STREAM)}, num_preemptions=0)
        scheduler.on_new_request(again)
        orders = step(scheduler, again, 40, [8, 9])
        assert (len(orders.openings), orders.chunks) == (1, ())
        assert len(step(scheduler, asked, 40, [4, 5]).chunks) == 1

    def test_a_preemption_begins_a_generation(self):
        scheduler = half()
        asked = self.ordered(scheduler)
        step(scheduler, asked, 40, [4, 5])
        asked.num_preemptions, asked.num_computed_tokens = 1, 0
        (chunk,) = step(scheduler, asked, 64, [5, 9]).chunks
        assert (chunk.generation, chunk.blocks, chunk.end_token) == (1, (5, 9), 64)

    def test_an_abort_is_told(self):
        scheduler = half()
        asked = self.ordered(scheduler)
        step(scheduler, asked, 40, [4, 5])
        asked.status = Status.FINISHED_ABORTED
        assert scheduler.request_finished(asked, ([4, 5],)) == (False, None)
        (ending,) = scheduler.take_orders().handoff.endings
        assert ending.remote is None

    def test_an_engine_that_does_not_hand_off_says_so_at_once(self):
        scheduler = half(producer=False)
        self.ordered(scheduler)
        orders = scheduler.take_orders().handoff
        assert len(orders.openings) == len(orders.endings) == 1

    def test_caches_that_change_meanwhile_are_not_announced(self):
        scheduler = half(announces=False)
        asked = self.ordered(scheduler)
        assert step(scheduler, asked, 40, [4, 5]).chunks == ()
        asked.status = Status.FINISHED_LENGTH_CAPPED
        scheduler.request_finished(asked, ([4, 5, 6],))
        assert len(scheduler.take_orders().handoff.endings) == 1


class TestConsumer:
    def following(self, scheduler, **changes):
        params = build_stream(StreamAddress(STREAM, (NODE,), (ENDPOINT,)))
        asked = request("d1", prompt(), params, **changes)
        scheduler.on_new_request(asked)
        return asked

    def test_blocks_are_taken_at_once(self):
        scheduler = half()
        asked = self.following(scheduler)
        (follow,) = scheduler.take_orders().handoff.follows
        assert (follow.request_id, follow.num_tokens) == ("d1", TOKENS)
        assert scheduler.matched_tokens(asked, 32) == (38, True)
        scheduler.after_alloc(asked, Blocks([7, 8, 9]), 38)
        (load,) = scheduler.take_orders().handoff.stream_loads
        assert (load.local_block_ids, load.first_token, load.num_tokens) == (((8, 9),), 32, 38)
        assert scheduler.matched_tokens(asked, 0) == (0, False)
        scheduler.request_finished(asked, ([7, 8, 9],))
        assert scheduler.take_orders().handoff.cancels == ("d1",)

    def test_what_a_prefill_leaves_out_is_not_waited_for(self):
        """Both engines must mean the same prompt, or each load of a model with states would fail."""
        prefill, decode = (half(announces=False, withheld=1) for _ in range(2))
        params = {"do_remote_decode": True, **stream_order(STREAM)}
        there = request("p1", prompt(), params, num_preemptions=0, _all_token_ids=prompt())
        prefill.on_new_request(there)
        (opening,) = prefill.take_orders().handoff.openings
        here = self.following(decode)
        (follow,) = decode.take_orders().handoff.follows
        assert (follow.digest, follow.num_tokens) == (opening.digest, TOKENS - 1)
        assert decode.matched_tokens(here, 0) == (TOKENS - 1, True)
        assert here.num_prompt_tokens == TOKENS

    @pytest.mark.parametrize("computed", [69, 70])
    def test_nothing_is_missing(self, computed):
        scheduler = half()
        asked = self.following(scheduler)
        assert scheduler.matched_tokens(asked, computed) == (0, False)
        scheduler.after_alloc(asked, Blocks([7, 8, 9]), 0)
        assert scheduler.take_orders().handoff.stream_releases == (("d1", "done"),)
        assert asked.kv_transfer_params["do_remote_prefill"] is False

    def test_aborted_before_it_got_blocks(self):
        scheduler = half()
        asked = self.following(scheduler)
        scheduler.request_finished(asked, ([],))
        assert scheduler.take_orders().handoff.stream_releases == (("d1", "rejected"),)

    def test_a_producer_does_not_follow(self):
        scheduler = half(consumer=False)
        asked = self.following(scheduler)
        assert scheduler.take_orders().handoff.stream_releases == (("d1", "rejected"),)
        assert scheduler.matched_tokens(asked, 0) == (0, False)
        counts, _ = scheduler.planner.take_counts()
        assert counts == {"refused_wrong_role": 1}

    def test_from_ourselves(self):
        scheduler = half()
        scheduler.set_workers({0: WorkerAddress(NODE, ENDPOINT)})
        asked = self.following(scheduler)
        orders = scheduler.take_orders().handoff
        assert (orders.follows, orders.own_streams) == ((), (STREAM,))
        assert scheduler.matched_tokens(asked, 0) == (0, False)

    def test_nonsense_is_refused(self):
        scheduler = half()
        params = {"do_remote_prefill": True, "kvferry": {"stream": STREAM, "node_ids": "x"}}
        scheduler.on_new_request(request("d1", prompt(), params))
        counts, _ = scheduler.planner.take_counts()
        assert counts == {"refused_invalid_params": 1}

from __future__ import annotations

import copy
import json
import pickle
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _vllm_shapes import BLOCK, Blocks, Status, request
from kvferry.handoff import WorkerAddress, parse_remote_prefill
from kvferry_vllm.scheduler import EngineFacts, SchedulerHalf

ENDPOINT = "127.0.0.1:4321"


def half(*, producer=True, consumer=True) -> SchedulerHalf:
    scheduler = SchedulerHalf(EngineFacts("engine", (BLOCK,), producer, consumer, 30.0))
    scheduler.set_workers({0: WorkerAddress(secrets.token_hex(16), ENDPOINT)})
    return scheduler


def prompt(tokens: int) -> list[int]:
    return list(range(100, 100 + tokens))


def prefilled(tokens: int, **changes):
    """What a prefill engine answers for `prompt(tokens)`, as it comes through a proxy: JSON."""
    finished = request(
        "p1",
        prompt(tokens),
        {"do_remote_decode": True},
        **{"num_computed_tokens": tokens, "status": Status.FINISHED_LENGTH_CAPPED, **changes},
    )
    held, params = half().request_finished(finished, (list(range(50, 50 - (-tokens // BLOCK))),))
    assert held
    return json.loads(json.dumps(params))


def arrived(scheduler, tokens: int, params, **changes):
    asked = request("d1", prompt(tokens), params, **changes)
    scheduler.on_new_request(asked)
    return asked


class TestConsumer:
    def test_a_whole_prompt_is_loaded(self):
        scheduler = half()
        asked = arrived(scheduler, 70, prefilled(70))
        assert [watch.request_id for watch in scheduler.take_orders().handoff.watches] == ["d1"]
        for _ in range(3):
            assert scheduler.matched_tokens(asked, 0) == (70, True)
        scheduler.after_alloc(asked, Blocks([7, 8, 9]), 70)
        (load,) = scheduler.take_orders().handoff.loads
        assert load.local_block_ids == ((7, 8, 9),)
        assert load.remote.block_ids == ((50, 51, 52),)
        assert (load.first_token, load.num_tokens) == (0, 70)
        scheduler.after_alloc(asked, Blocks([7, 8, 9]), 0)
        scheduler.planner.loads_ended({"d1"}, set())
        assert scheduler.matched_tokens(asked, 0) == (
            0,
            False,
        )  # asked again after a preemption or a failed load
        assert scheduler.request_finished(asked, ([7, 8, 9],)) == (False, None)
        orders = scheduler.take_orders().handoff
        assert (orders.loads, orders.give_backs, orders.cancels) == ((), (), ())

    def test_local_prefix_hit_leaves_the_tail(self):
        scheduler = half()
        asked = arrived(scheduler, 70, prefilled(70))
        assert scheduler.matched_tokens(asked, 64) == (6, True)
        assert scheduler.matched_tokens(asked, 32) == (
            38,
            True,
        )  # blocks were evicted meanwhile: the last one counts
        scheduler.after_alloc(asked, Blocks([7, 8, 9]), 38)
        (load,) = scheduler.take_orders().handoff.loads
        assert load.local_block_ids == ((8, 9),)
        assert (load.first_token, load.num_tokens) == (32, 38)

    def test_prompt_shorter_than_a_block(self):
        scheduler = half()
        asked = arrived(scheduler, 5, prefilled(5))
        assert scheduler.matched_tokens(asked, 0) == (5, True)
        scheduler.after_alloc(asked, Blocks([3]), 5)
        (load,) = scheduler.take_orders().handoff.loads
        assert load.local_block_ids == ((3,),)

    def test_blocks_for_tokens_beyond_the_prompt_are_not_loaded(self):
        scheduler = half()
        asked = arrived(scheduler, 40, prefilled(40))
        scheduler.matched_tokens(asked, 0)
        scheduler.after_alloc(asked, Blocks([3, 4, 5, 6]), 40)
        (load,) = scheduler.take_orders().handoff.loads
        assert load.local_block_ids == ((3, 4),)

    @pytest.mark.parametrize(("tokens", "computed"), [(65, 64), (64, 64), (1, 0)])
    def test_a_load_that_saves_nothing_is_not_made_and_the_lease_given_back(self, tokens, computed):
        scheduler = half()
        asked = arrived(scheduler, tokens, prefilled(tokens))
        assert scheduler.matched_tokens(asked, computed) == (0, False)
        scheduler.after_alloc(asked, Blocks([1, 2, 3]), 0)
        orders = scheduler.take_orders().handoff
        assert not orders.loads
        assert [(back.request_id, back.reason) for back in orders.give_backs] == [("d1", "done")]
        assert asked.kv_transfer_params["do_remote_prefill"] is False

    def test_rejected_before_it_got_blocks(self):
        scheduler = half()
        asked = arrived(scheduler, 70, prefilled(70))
        scheduler.matched_tokens(asked, 0)
        asked.status = Status.FINISHED_ABORTED
        assert scheduler.request_finished(asked, ([],)) == (False, None)
        (back,) = scheduler.take_orders().handoff.give_backs
        assert back.reason == "rejected"
        assert back.address.endpoints == (ENDPOINT,)

    def test_refused_by_the_api_server(self):
        """vLLM then adds a request of one token that it ends at once."""
        scheduler = half()
        asked = request("d1", [0], prefilled(70), abort_immediately=True)
        scheduler.on_new_request(asked)
        scheduler.request_finished(asked, ([],))
        (back,) = scheduler.take_orders().handoff.give_backs
        assert back.reason == "rejected"
        assert scheduler.planner.take_counts()[0] == {}

    def test_aborted_while_loading(self):
        scheduler = half()
        asked = arrived(scheduler, 70, prefilled(70))
        scheduler.matched_tokens(asked, 0)
        scheduler.after_alloc(asked, Blocks([7, 8, 9]), 70)
        asked.status = Status.FINISHED_ABORTED
        assert scheduler.request_finished(asked, ([7, 8, 9],)) == (False, None)
        orders = scheduler.take_orders().handoff
        assert orders.cancels == ("d1",)
        assert not orders.give_backs
        scheduler.planner.loads_ended({"d1"}, set())

    def test_its_own_prefill_is_not_loaded_and_given_back(self):
        scheduler = half()
        finished = request(
            "p1",
            prompt(70),
            {"do_remote_decode": True},
            num_computed_tokens=70,
            status=Status.FINISHED_LENGTH_CAPPED,
        )
        _, params = scheduler.request_finished(finished, ([1, 2, 3],))
        asked = arrived(scheduler, 70, params)
        assert scheduler.matched_tokens(asked, 64) == (0, False)
        assert [back.reason for back in scheduler.take_orders().handoff.give_backs] == ["done"]

    def test_longer_prompt_of_the_same_beginning(self):
        scheduler = half()
        asked = arrived(scheduler, 100, prefilled(70))
        assert scheduler.matched_tokens(asked, 0) == (70, True)

    def test_other_prompt_is_never_loaded(self):
        scheduler = half()
        asked = request("d1", [1, *prompt(70)[1:]], prefilled(70))
        scheduler.on_new_request(asked)
        assert scheduler.matched_tokens(asked, 0) == (0, False)
        assert scheduler.planner.take_counts()[0] == {"refused_other_prompt": 1}
        (back,) = scheduler.take_orders().handoff.give_backs
        assert back.reason == "rejected"

    def test_adapter_and_images_are_part_of_the_prompt(self):
        from types import SimpleNamespace

        image = SimpleNamespace(identifier="hash-1", mm_position=SimpleNamespace(offset=3))
        other = SimpleNamespace(identifier="hash-2", mm_position=SimpleNamespace(offset=3))
        lora = SimpleNamespace(lora_name="a")
        for had, has in [
            ({"lora_request": lora}, {}),
            ({}, {"lora_request": lora}),
            ({"mm_features": [image]}, {"mm_features": [other]}),
        ]:
            scheduler = half()
            asked = arrived(scheduler, 70, prefilled(70, **had), **has)
            assert scheduler.matched_tokens(asked, 0) == (0, False)
        scheduler = half()
        asked = arrived(scheduler, 70, prefilled(70, mm_features=[image]), mm_features=[image])
        assert scheduler.matched_tokens(asked, 0) == (70, True)

    def test_shorter_prompt_and_embeddings_are_refused(self):
        scheduler = half()
        arrived(scheduler, 60, prefilled(70))
        scheduler.on_new_request(request("d2", None, prefilled(70)))
        assert scheduler.planner.take_counts()[0] == {"refused_other_prompt": 1, "refused_no_token_ids": 1}
        assert len(scheduler.take_orders().handoff.give_backs) == 2

    def test_a_producer_gives_the_lease_back(self):
        scheduler = half(consumer=False)
        asked = arrived(scheduler, 70, prefilled(70))
        assert scheduler.matched_tokens(asked, 0) == (0, False)
        assert scheduler.planner.take_counts()[0] == {"refused_wrong_role": 1}
        assert len(scheduler.take_orders().handoff.give_backs) == 1

    def test_bad_params_are_counted_and_the_request_goes_on(self, caplog):
        scheduler = half()
        for _ in range(20):
            params = prefilled(70)
            params["kvferry"]["lease"] = "x"
            asked = arrived(scheduler, 70, params)
            assert scheduler.matched_tokens(asked, 0) == (0, False)
            assert asked.kv_transfer_params["do_remote_prefill"] is False
            scheduler.after_alloc(asked, Blocks([1, 2, 3]), 0)
            assert scheduler.request_finished(asked, ([1, 2, 3],)) == (False, None)
            assert scheduler.planner.take_counts()[0] == {"refused_invalid_params": 1}  # taken at each step
        # One warning for all of them, since they follow each other closely.
        assert [record.levelname for record in caplog.records] == ["WARNING"]

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["do_remote_prefill", "do_remote_decode", "kvferry", "remote_block_ids", "lease"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        )
    )
    def test_nothing_a_client_sends_raises(self, params):
        scheduler = half()
        asked = arrived(scheduler, 70, copy.deepcopy(params))
        assert scheduler.matched_tokens(asked, 0) == (0, False)
        scheduler.after_alloc(asked, Blocks([1, 2, 3]), 0)
        asked.status, asked.num_computed_tokens = Status.FINISHED_ABORTED, 70
        assert scheduler.request_finished(asked, ([1, 2, 3],)) == (False, None)


class TestProducer:
    def finished(self, tokens=70, **changes):
        values = {"num_computed_tokens": tokens, "status": Status.FINISHED_LENGTH_CAPPED, **changes}
        return request("p1", prompt(tokens), {"do_remote_decode": True}, **values)

    def test_blocks_stay_and_the_lease_reaches_the_workers(self):
        scheduler = half()
        held, params = scheduler.request_finished(self.finished(), ([4, 5, 6],))
        assert held
        remote = parse_remote_prefill(params)
        assert remote.block_ids == ((4, 5, 6),)
        assert remote.num_tokens == 70
        assert (remote.engine_id, remote.request_id) == ("engine", "p1")
        assert (params["remote_host"], params["remote_port"]) == ("127.0.0.1", 4321)
        orders = scheduler.take_orders().handoff
        assert orders.leases == ((remote.address.lease, "p1"),)
        assert orders.issued_through == 1
        assert scheduler.take_orders().handoff.leases == ()

    def test_tokens_after_the_prompt_are_not_handed_off(self):
        scheduler = half()
        asked = self.finished(num_computed_tokens=130)
        _, params = scheduler.request_finished(asked, ([4, 5, 6, 7, 8],))
        assert params["remote_block_ids"] == [[4, 5, 6]]
        assert params["remote_num_tokens"] == 70

    @pytest.mark.parametrize(
        ("changes", "blocks"),
        [
            ({"status": Status.FINISHED_STOPPED}, [4, 5, 6]),
            ({"status": Status.FINISHED_ABORTED}, [4, 5, 6]),
            ({"kv_transfer_params": None}, [4, 5, 6]),
            ({"kv_transfer_params": {"do_remote_decode": False}}, [4, 5, 6]),
            ({"prompt_token_ids": None}, [4, 5, 6]),
            ({"num_computed_tokens": 0}, [4, 5, 6]),
            ({}, []),
        ],
    )
    def test_everything_else_is_freed_at_once(self, changes, blocks):
        scheduler = half()
        asked = self.finished()
        vars(asked).update(changes)
        assert scheduler.request_finished(asked, (blocks,)) == (False, None)
        assert scheduler.take_orders().handoff.leases == ()

    def test_a_consumer_does_not_hand_off(self):
        assert half(producer=False).request_finished(self.finished(), ([4, 5, 6],)) == (False, None)

    def test_nothing_is_handed_off_before_the_workers_are_known(self):
        scheduler = SchedulerHalf(EngineFacts("engine", (BLOCK,), True, True, 30.0))
        assert scheduler.request_finished(self.finished(), ([4, 5, 6],)) == (False, None)

    def test_ranks_are_in_order(self):
        scheduler = half()
        scheduler.set_workers({1: WorkerAddress("1" * 32, "[::1]:2"), 0: WorkerAddress("2" * 32, "[::1]:1")})
        _, params = scheduler.request_finished(self.finished(), ([4, 5, 6],))
        assert params["kvferry"]["endpoints"] == ("[::1]:1", "[::1]:2")
        assert params["tp_size"] == 2
        assert (params["remote_host"], params["remote_port"]) == ("::1", 1)

    def test_stages_come_before_ranks(self):
        scheduler = half()
        workers = {
            (stage, rank): WorkerAddress(f"a{stage}{rank}b" * 8, f"127.0.0.1:{stage}{rank}")
            for rank in (1, 0)
            for stage in (1, 0)
        }
        scheduler.set_workers(workers, stages=2)
        _, params = scheduler.request_finished(self.finished(), ([4, 5, 6],))
        ports = [endpoint.rpartition(":")[2] for endpoint in params["kvferry"]["endpoints"]]
        assert ports == ["00", "01", "10", "11"]
        assert (params["tp_size"], params["pp_size"]) == (2, 2)
        address = parse_remote_prefill(json.loads(json.dumps(params))).address
        assert (address.tp_size, address.pp_size) == (2, 2)

    def test_groups_with_blocks_of_their_own_size_are_handed_off_each(self):
        """Full attention, a window whose first blocks are given up, and one state for all tokens."""
        facts = EngineFacts("engine", (BLOCK, BLOCK, 4096), True, True, 30.0)
        scheduler = SchedulerHalf(facts)
        scheduler.set_workers({0: WorkerAddress("1" * 32, ENDPOINT)})
        _, params = scheduler.request_finished(self.finished(), ([4, 5, 6, 9], [0, 0, 7], [8]))
        assert params["remote_block_ids"] == [[4, 5, 6], [0, 0, 7], [8]]
        offer = parse_remote_prefill(json.loads(json.dumps(params)))
        taker = SchedulerHalf(facts)
        taker.on_new_request(asked := request("d1", prompt(70), json.loads(json.dumps(params))))
        assert taker.matched_tokens(asked, BLOCK) == (70 - BLOCK, True)
        taker.after_alloc(asked, _Groups([1, 2, 3], [0, 0, 5], [6]), 70 - BLOCK)
        (load,) = taker.take_orders().handoff.loads
        assert load.local_block_ids == ((2, 3), (0, 5), (6,))
        assert load.remote.block_ids == offer.block_ids

    def test_the_last_token_is_left_out_of_a_prompt_whose_state_must_not_hold_it(self):
        scheduler = SchedulerHalf(EngineFacts("engine", (BLOCK,), True, True, 30.0, withheld=1))
        scheduler.set_workers({0: WorkerAddress("1" * 32, ENDPOINT)})
        asked = self.finished()
        asked._all_token_ids = list(asked.prompt_token_ids)
        scheduler.on_new_request(asked)
        assert asked.num_prompt_tokens == len(asked.prompt_token_ids) == len(asked._all_token_ids) == 69
        assert asked.max_tokens == 1
        _, params = scheduler.request_finished(asked, ([4, 5, 6],))
        assert params["remote_num_tokens"] == 69
        taker = half()
        taker.on_new_request(whole := request("d1", prompt(70), json.loads(json.dumps(params))))
        assert taker.matched_tokens(whole, 0) == (69, True)

    @pytest.mark.parametrize("params", [None, {"do_remote_prefill": False}])
    def test_prompts_that_are_answered_here_are_not_shortened(self, params):
        scheduler = SchedulerHalf(EngineFacts("engine", (BLOCK,), True, True, 30.0, withheld=1))
        scheduler.on_new_request(asked := request("r1", prompt(70), params))
        assert asked.num_prompt_tokens == len(asked.prompt_token_ids) == 70

    def test_loaded_then_handed_on(self):
        """A request may be loaded here and handed off again: kv_both."""
        scheduler = half()
        params = {**prefilled(70), "do_remote_decode": True}
        asked = arrived(scheduler, 70, params)
        scheduler.matched_tokens(asked, 0)
        scheduler.after_alloc(asked, Blocks([7, 8, 9]), 70)
        scheduler.planner.loads_ended({"d1"}, set())
        asked.status, asked.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, 70
        held, handed_on = scheduler.request_finished(asked, ([7, 8, 9],))
        assert held
        assert handed_on["remote_block_ids"] == [[7, 8, 9]]


class _Groups:
    def __init__(self, *ids: list[int]) -> None:
        self.ids = ids

    def get_block_ids(self) -> tuple[list[int], ...]:
        return self.ids


def test_orders_travel_between_processes():
    scheduler = half()
    asked = arrived(scheduler, 70, prefilled(70))
    scheduler.matched_tokens(asked, 0)
    scheduler.after_alloc(asked, Blocks([7, 8, 9]), 70)
    orders = scheduler.take_orders().handoff
    assert pickle.loads(pickle.dumps(orders)) == orders

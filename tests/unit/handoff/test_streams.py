"""A prompt's KV cache is read while it is computed, and believed only once its lease is confirmed."""

from __future__ import annotations

import pytest

from _handoff import BLOCK_TOKENS, Clock
from _streaming import FollowingDecode, StreamingPrefill, settle, stream_id
from kvferry.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    PeerLostError,
    ProtocolError,
    StaleError,
)
from kvferry.handoff import Chunk, Ending
from kvferry.handoff.messages import StreamCancel, encode_message
from kvferry.testing import FakeNetwork

BLOCKS = (2, 5, 7)
LOCAL = (1, 3, 4)
TOKENS = 11  # the last block is not full


class Pair:
    def __init__(self) -> None:
        self.clock = Clock()
        self.network = FakeNetwork(clock=self.clock)
        self.prefill = StreamingPrefill(self.network, self.clock)
        self.decode = FollowingDecode(self.network, self.clock)

    def follow(self, request_id: str = "d1", number: int = 1) -> None:
        self.decode.watch(request_id, number, self.prefill, TOKENS)
        self.decode.allocate(request_id, LOCAL, TOKENS)
        settle(self.prefill, self.decode)

    def settle(self) -> None:
        settle(self.prefill, self.decode)

    def finish(self, number: int = 1, generation: int = 0, blocks: tuple[int, ...] = BLOCKS) -> None:
        self.prefill.end(self.prefill.lease(number, blocks, TOKENS, generation), f"p{number}")

    def result(self):
        self.settle()
        (result,) = self.decode.consumer.take_results()
        return result

    def early_pulls(self) -> int:
        return self.decode.receiver.take_counts().get("early_pulls", 0)


@pytest.fixture
def pair() -> Pair:
    return Pair()


class TestTheGoodCase:
    def test_chunks_arrive_while_the_prefill_goes_on(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS[:2], 2 * BLOCK_TOKENS)
        pair.settle()
        assert pair.decode.memory.values(LOCAL) == [3, 6, 0]
        assert pair.decode.consumer.take_results() == []
        pair.prefill.compute(1, BLOCKS, TOKENS, told=2)
        pair.settle()
        assert pair.decode.memory.values(LOCAL) == [3, 6, 8]
        assert pair.decode.consumer.take_results() == []  # all is there, and nothing is confirmed
        pair.finish()
        assert pair.result().error is None
        assert pair.early_pulls() >= 2
        assert pair.prefill.table.take_counts()["done"] == 1
        assert len(pair.decode.receiver) == 0

    def test_layers_arrive_one_by_one(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.memory.fill(2, 9)
        pair.prefill.begin_step(Chunk(stream_id(1), 0, (2,), BLOCK_TOKENS))
        pair.settle()
        for layer, there in ((1, [0, 9]), (0, [9, 9])):
            pair.prefill.layer_written(layer)
            pair.settle()
            assert [int(value) for value in pair.decode.memory.data[:, 1, 0]] == there

    def test_a_block_that_is_not_full_waits(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS[:2], 2 * BLOCK_TOKENS - 1)
        pair.settle()
        assert pair.decode.memory.values(LOCAL) == [3, 0, 0]

    @pytest.mark.parametrize("order", ["decode first", "prefill first"])
    def test_either_side_may_be_first(self, pair, order):
        if order == "decode first":
            pair.follow()
        pair.prefill.open(1)
        pair.prefill.compute(1, BLOCKS, TOKENS)
        pair.finish()
        pair.settle()
        if order == "prefill first":
            pair.follow()
        assert pair.result().error is None
        assert pair.decode.memory.values(LOCAL) == [3, 6, 8]

    def test_what_is_cached_here_is_not_read(self, pair):
        pair.prefill.open(1)
        pair.decode.watch("d1", 1, pair.prefill, TOKENS)
        pair.decode.allocate("d1", LOCAL[1:], TOKENS, first_block=1)
        pair.prefill.compute(1, BLOCKS, TOKENS)
        pair.finish()
        assert pair.result().error is None
        assert pair.decode.memory.values(LOCAL) == [0, 6, 8]

    def test_the_lease_is_renewed_while_there_is_no_room_here(self, pair):
        pair.prefill.open(1)
        pair.decode.watch("d1", 1, pair.prefill, TOKENS)
        pair.prefill.compute(1, BLOCKS, TOKENS)
        pair.finish()
        for _ in range(10):
            pair.settle()
            pair.clock.now += 10.0
            pair.decode.consumer.tick()
            pair.prefill.table.expire()
            pair.prefill.streams.expire()
        pair.decode.allocate("d1", LOCAL, TOKENS)
        assert pair.result().error is None

    def test_without_announcements_all_is_read_at_the_end(self, pair):
        """What a model with several KV cache groups gets."""
        pair.prefill.open(1)
        pair.follow()
        for block in BLOCKS:
            pair.prefill.memory.fill(block, block + 1)
        pair.finish()
        assert pair.result().error is None
        assert pair.decode.memory.values(LOCAL) == [3, 6, 8]
        assert pair.early_pulls() == 0


class TestBegunAnew:
    def test_what_was_read_before_is_dropped(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS, TOKENS, value=50)
        pair.settle()
        other = (8, 9, 10)
        pair.prefill.compute(1, other, TOKENS, generation=1, value=60)
        pair.finish(generation=1, blocks=other)
        assert pair.result().error is None
        assert pair.decode.memory.values(LOCAL) == [60, 60, 60]

    def test_even_if_nothing_was_announced_of_the_second_time(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS, TOKENS, value=50)
        pair.settle()
        for block in BLOCKS:
            pair.prefill.memory.fill(block, 60)
        pair.finish(generation=1)
        assert pair.result().error is None
        assert pair.decode.memory.values(LOCAL) == [60, 60, 60]

    def test_nothing_is_read_over_a_dropped_transfer_that_may_still_write(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.network.hold = True
        pair.prefill.compute(1, BLOCKS, TOKENS, value=50)
        pair.settle()
        (slow, *_) = pair.network.held
        slow.cancel = lambda: None  # does not settle before its deadline
        pair.network.hold = False
        pair.prefill.compute(1, (8, 9, 10), TOKENS, generation=1, value=60)
        for _ in range(3):
            pair.prefill.run()
            pair.decode.run()
        assert pair.decode.memory.values(LOCAL) == [0, 0, 0]
        pair.network.run_held()
        pair.finish(generation=1, blocks=(8, 9, 10))
        assert pair.result().error is None
        assert pair.decode.memory.values(LOCAL) == [60, 60, 60]


class TestTheProducerGivesUp:
    def test_between_two_chunks(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS[:1], BLOCK_TOKENS)
        pair.settle()
        pair.prefill.end(Ending(stream_id(1), 0, None, "the request was aborted"))
        error = pair.result().error
        assert isinstance(error, StaleError)
        assert "aborted" in str(error)

    def test_another_prompt(self, pair):
        pair.prefill.open(1, digest="ff")
        pair.follow()
        assert isinstance(pair.result().error, StaleError)

    def test_it_never_gets_the_request(self, pair):
        pair.follow()
        pair.clock.now += 21.0
        pair.prefill.streams.expire()
        assert "did not get the request" in str(pair.result().error)
        assert len(pair.prefill.streams) == 0

    def test_it_dies(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS[:1], BLOCK_TOKENS)
        pair.settle()
        pair.prefill.engine.close()
        pair.decode.receiver.tick()
        assert isinstance(pair.result().error, PeerLostError)

    def test_it_was_restarted_before(self, pair):
        dead = pair.prefill
        dead.engine.close()
        pair.prefill = StreamingPrefill(pair.network, pair.clock, endpoint=dead.engine.endpoint)
        pair.decode.watch("d1", 1, dead, TOKENS)
        pair.decode.allocate("d1", LOCAL, TOKENS)
        assert pair.result().error.code == "identity_mismatch"

    def test_it_takes_too_long(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.clock.now += 61.0
        pair.decode.receiver.tick()
        assert isinstance(pair.result().error, DeadlineExceededError)
        assert pair.prefill.streams.take_counts()["streams_cancelled"] == 1

    def test_the_lease_ran_out(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS, TOKENS)
        pair.finish()
        pair.clock.now += 31.0
        pair.prefill.table.expire()
        assert isinstance(pair.result().error, StaleError)

    def test_a_lost_message(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS[:1], BLOCK_TOKENS)
        pair.prefill.run()
        pair.decode.jobs.waiting.clear()
        pair.prefill.compute(1, BLOCKS, TOKENS, told=1)
        assert isinstance(pair.result().error, ProtocolError)

    def test_another_prompts_end(self, pair):
        pair.prefill.open(1)
        pair.follow()
        ending = pair.prefill.lease(2, BLOCKS, TOKENS)
        pair.prefill.end(Ending(stream_id(1), 0, ending.remote), "p1")
        assert isinstance(pair.result().error, InvalidArgumentError)
        assert pair.prefill.table.held() == 0

    def test_the_lease_is_for_other_blocks_than_were_announced(self, pair):
        """As when two requests are announced under one name: what was read early is another one's."""
        pair.prefill.open(1)
        pair.follow()
        for block, byte in ((3, 9), (5, 6), (7, 8)):
            pair.prefill.memory.fill(block, byte)
        pair.prefill.compute(1, BLOCKS, TOKENS)
        pair.settle()
        assert pair.decode.memory.values(LOCAL) == [3, 6, 8]
        pair.finish(blocks=(3, 5, 7))
        assert pair.result().error is None
        assert pair.decode.memory.values(LOCAL) == [9, 6, 8]

    def test_an_early_read_failed(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.network.hold = True
        pair.prefill.compute(1, BLOCKS, TOKENS)
        pair.settle()
        for transfer in pair.network.held:
            transfer.cancel()
        pair.network.hold = False
        pair.finish()
        assert pair.result().error is not None
        pair.settle()
        assert pair.prefill.table.held() == 0  # the lease is given back, not left to run out


class TestTheConsumerGivesUp:
    @pytest.mark.parametrize("when", ["before the end", "after the end"])
    def test_the_producers_blocks_are_free_at_once(self, pair, when):
        pair.prefill.open(1)
        pair.decode.watch("d1", 1, pair.prefill, TOKENS)
        pair.settle()
        pair.prefill.compute(1, BLOCKS, TOKENS)
        if when == "after the end":
            pair.finish()
        pair.decode.jobs.post(lambda: pair.decode.receiver.release("d1", "rejected"))
        pair.settle()
        if when == "before the end":
            pair.finish()
        pair.settle()
        assert pair.prefill.table.held() == 0
        assert pair.prefill.table.take_counts()["rejected"] == 1

    def test_aborted_while_reading(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS[:1], BLOCK_TOKENS)
        pair.decode.jobs.post(lambda: pair.decode.receiver.cancel("d1"))
        assert isinstance(pair.result().error, CancelledError)
        pair.finish()
        pair.settle()
        assert pair.prefill.table.held() == 0

    def test_the_result_waits_for_transfers_under_way(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.network.hold = True
        pair.prefill.compute(1, BLOCKS[:1], BLOCK_TOKENS)
        pair.settle()
        (slow, *_) = pair.network.held
        slow.cancel = lambda: None
        pair.decode.jobs.post(lambda: pair.decode.receiver.cancel("d1"))
        pair.decode.run()
        assert pair.decode.consumer.take_results() == []
        pair.network.run_held()
        pair.decode.chores.run()
        (result,) = pair.decode.consumer.take_results()
        assert result.cancelled

    def test_the_router_cancels(self, pair):
        pair.prefill.open(1)
        pair.follow()
        router = pair.network.engine()
        peer = router.connect(pair.prefill.engine.endpoint)
        for _ in range(2):
            router.send(peer, encode_message(StreamCancel(stream_id(1), "aborted")))
        assert isinstance(pair.result().error, StaleError)
        assert pair.prefill.streams.take_counts()["duplicate_notices"] == 1

    def test_the_router_cancels_what_has_not_come_yet(self, pair):
        router = pair.network.engine()
        peer = router.connect(pair.prefill.engine.endpoint)
        router.send(peer, encode_message(StreamCancel(stream_id(1), "aborted")))
        pair.prefill.run()
        pair.follow()
        assert isinstance(pair.result().error, StaleError)


class TestTooMany:
    """Whoever comes last is refused, at once; what is under way goes on."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr("kvferry.handoff.stream_out.MAX_STREAMS", 6)
        monkeypatch.setattr("kvferry.handoff.stream_out.MAX_UNOPENED", 3)

    def flood(self, pair, first: int, last: int) -> None:
        for number in range(first, last):
            pair.decode.watch(f"f{number}", number, pair.prefill, TOKENS)
            pair.decode.allocate(f"f{number}", LOCAL, TOKENS)
            pair.settle()

    def test_a_flood_of_names_ends_no_stream_that_runs(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS[:2], 2 * BLOCK_TOKENS)
        pair.settle()
        self.flood(pair, 10, 20)
        failed = pair.decode.consumer.take_results()
        assert [result.request_id for result in failed] == [f"f{number}" for number in range(13, 20)]
        assert all(isinstance(result.error, StaleError) for result in failed)
        assert pair.prefill.streams.take_counts()["streams_refused"] == 7
        pair.prefill.open(2)  # the engine's own requests still find a place
        pair.prefill.open(3)
        pair.settle()
        assert len(pair.prefill.streams) == 6
        pair.prefill.compute(1, BLOCKS, TOKENS, told=2)
        pair.finish()
        assert pair.result().error is None
        assert pair.decode.memory.values(LOCAL) == [3, 6, 8]

    def test_a_request_that_finds_no_place_is_handed_off_at_its_end(self, pair):
        for number in range(1, 8):
            pair.prefill.open(number)
        pair.settle()
        assert len(pair.prefill.streams) == 6
        assert pair.prefill.streams.take_counts()["streams_refused"] == 1
        pair.prefill.compute(7, BLOCKS, TOKENS)
        pair.finish(7)
        pair.settle()
        assert len(pair.prefill.streams) == 6
        pair.decode.watch("d7", 7, pair.prefill, TOKENS)
        pair.decode.allocate("d7", LOCAL, TOKENS)
        assert isinstance(pair.result().error, StaleError)

    def test_there_is_room_again_when_what_never_came_is_over(self, pair):
        self.flood(pair, 10, 14)
        pair.decode.consumer.take_results()
        pair.clock.now += 25.0
        pair.prefill.streams.expire()
        assert len(pair.prefill.streams) == 0
        self.flood(pair, 20, 23)
        assert len(pair.prefill.streams) == 3
        for number in (20, 21, 22):  # and when their requests come
            pair.prefill.open(number)
        pair.settle()
        self.flood(pair, 30, 33)
        assert len(pair.prefill.streams) == 6

    def test_a_cancel_beyond_the_limit_is_refused(self, pair):
        self.flood(pair, 10, 13)
        pair.prefill.streams.take_counts()
        pair.prefill.streams.cancel(1, StreamCancel(stream_id(99), "done"))
        assert pair.prefill.streams.take_counts() == {"streams_refused": 1}


class TestStrangers:
    def test_messages_again_late_and_unknown_change_nothing(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.compute(1, BLOCKS[:1], BLOCK_TOKENS)
        pair.settle()
        for peer, body in list(pair.prefill.sent):
            pair.prefill.engine.send(peer, body)
        pair.settle()
        pair.prefill.compute(1, BLOCKS, TOKENS, told=1)
        pair.finish()
        assert pair.result().error is None
        for peer, body in list(pair.prefill.sent):
            pair.prefill.engine.send(peer, body)
        pair.settle()
        counts = pair.decode.receiver.take_counts()
        assert counts["duplicate_notices"] == 1
        assert counts["unknown_notices"] == 3
        assert pair.decode.consumer.take_results() == []

    def test_who_comes_second_to_the_lease_is_told_no(self, pair):
        pair.prefill.open(1)
        pair.follow()
        other = FollowingDecode(pair.network, pair.clock)
        other.watch("x", 1, pair.prefill, TOKENS)
        other.allocate("x", LOCAL, TOKENS)
        settle(pair.prefill, other)
        pair.prefill.compute(1, BLOCKS, TOKENS)
        pair.finish()
        assert pair.result().error is None
        settle(pair.prefill, other)
        (result,) = other.consumer.take_results()
        assert isinstance(result.error, StaleError)

    def test_a_second_request_of_the_same_stream_gets_a_result_too(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.follow("d2")
        (result,) = pair.decode.consumer.take_results()
        assert (result.request_id, type(result.error)) == ("d2", InvalidArgumentError)
        pair.prefill.compute(1, BLOCKS, TOKENS)
        pair.finish()
        assert pair.result().error is None  # the first one's
        assert len(pair.decode.receiver) == 0

    def test_block_ids_that_the_cache_does_not_have(self, pair):
        pair.prefill.open(1)
        pair.follow()
        pair.prefill.begin_step(Chunk(stream_id(1), 0, (4_000_000, 2, 3), TOKENS))
        pair.prefill.end_step()
        assert pair.result().error.code == "out_of_range"

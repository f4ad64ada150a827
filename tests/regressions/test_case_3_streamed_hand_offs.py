"""Field cases 3.1, 3.3, 3.4 and 3.7 where the decode engine reads while the prefill engine computes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import pytest

from _handoff import BLOCK_TOKENS, Clock
from _streaming import STREAM_TIMEOUT_S, FollowingDecode, StreamingPrefill, settle, stream_id
from kvferry.errors import DeadlineExceededError, StaleError
from kvferry.handoff import Ending
from kvferry.testing import FakeNetwork
from kvferry.testing.fake_openai import Behaviour
from kvferry.testing.router_cluster import RouterCluster

BLOCKS, LOCAL = (2, 5, 7, 9), (1, 3, 4, 6)
TOKENS = 4 * BLOCK_TOKENS


class Pair:
    def __init__(self) -> None:
        self.clock = Clock()
        self.network = FakeNetwork(clock=self.clock)
        self.prefill = StreamingPrefill(self.network, self.clock)
        self.decode = FollowingDecode(self.network, self.clock)

    def follow(self, number: int) -> None:
        self.decode.watch(f"d{number}", number, self.prefill, TOKENS)
        self.decode.allocate(f"d{number}", LOCAL, TOKENS)


def test_3_1_a_restarted_prefill_engine_behind_the_same_address() -> None:
    """sgl-project/sglang#6215, #34289: what the old process said is of no use, what the new one says is."""
    pair = Pair()
    old = pair.prefill
    old.open(1)
    pair.follow(1)
    settle(old, pair.decode)
    old.compute(1, BLOCKS[:2], 2 * BLOCK_TOKENS)
    settle(old, pair.decode)
    old.engine.close()
    pair.prefill = StreamingPrefill(pair.network, pair.clock, endpoint=old.engine.endpoint)
    pair.decode.receiver.tick()
    assert [result.error.code for result in pair.decode.consumer.take_results()] == ["peer_lost"]
    pair.prefill.open(2)
    pair.follow(2)
    settle(pair.prefill, pair.decode)
    pair.prefill.compute(2, BLOCKS, TOKENS)
    pair.prefill.end(pair.prefill.lease(2, BLOCKS, TOKENS), "p2")
    settle(pair.prefill, pair.decode)
    assert [result.error for result in pair.decode.consumer.take_results()] == [None]


def test_3_3_a_prefill_engine_that_falls_silent() -> None:
    """vllm-project/vllm#35943: every wait of the decode engine ends."""
    pair = Pair()
    for number in range(20):
        pair.prefill.open(number + 1)
        pair.follow(number + 1)
    settle(pair.prefill, pair.decode)
    pair.prefill.engine.stopped = True
    pair.clock.now += STREAM_TIMEOUT_S + 1
    pair.decode.receiver.tick()
    results = pair.decode.consumer.take_results()
    assert len(results) == 20
    assert all(isinstance(result.error, DeadlineExceededError) for result in results)
    assert len(pair.decode.receiver) == 0


async def test_3_4_whoever_refuses_or_leaves_the_prefill_server_is_told_at_once() -> None:
    """vllm-project/vllm#41269: 100 requests that the decode server never admits."""
    async with RouterCluster(decode=1) as cluster:
        (prefill,), (decode,) = cluster.prefill, cluster.decode
        prefill.node_id, decode.prefill = secrets.token_hex(16), prefill
        assert (await cluster.complete())[0] == 200
        hold = asyncio.Event()
        for number in range(100):
            prefill.behaviour = Behaviour(hold=hold if number % 2 else None)
            decode.behaviour = (Behaviour(status=400), Behaviour(status=404), Behaviour(hold=hold))[
                number % 3
            ]
            asked = asyncio.create_task(cluster.complete())
            await prefill.wait_for_calls(number + 2, 60.0)
            if number % 3 == 2:
                await decode.wait_for_calls(number + 2, 60.0)
                asked.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asked
            else:
                assert (await asked)[0] in (400, 404)
            async with asyncio.timeout(60):  # these leases never end by themselves
                while cluster.leases.open or len(cluster.leases.cancelled) < number + 1:
                    await asyncio.sleep(0.001)
            await asyncio.wait_for(prefill.calls[-1].ended.wait(), 60.0)
        assert cluster.leases.followed == []


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_3_7_prefill_aborts_between_chunks(chunks: int) -> None:
    """sgl-project/sglang#30233: the decode engine hears "aborted", and nothing of a part is used."""
    pair = Pair()
    pair.prefill.open(1)
    pair.follow(1)
    settle(pair.prefill, pair.decode)
    for chunk in range(chunks):
        pair.prefill.compute(1, BLOCKS[: chunk + 1], (chunk + 1) * BLOCK_TOKENS, told=chunk)
        settle(pair.prefill, pair.decode)
    assert pair.decode.consumer.take_results() == []
    pair.prefill.end(Ending(stream_id(1), 0, None, "the request was aborted"))
    settle(pair.prefill, pair.decode)
    (result,) = pair.decode.consumer.take_results()
    assert isinstance(result.error, StaleError)
    assert "aborted" in str(result.error)
    assert result.bytes == 0

"""A request refused by the decode engine, or a client gone before admission, stranded blocks for minutes."""

from __future__ import annotations

from _handoff import Clock, Decode, Prefill
from kvferry.handoff import LeaseReleaser, build_remote_prefill
from kvferry.testing import FakeNetwork

ROUNDS = 100


def test_refused_by_the_decode_engine() -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode, prefill = Decode(network, clock), Prefill(network, clock)
    for index in range(ROUNDS):
        remote = prefill.finish(f"p{index}", (3,))
        decode.consumer.watch(f"d{index}", remote.address)
        decode.consumer.release(f"d{index}", remote.address, "rejected")
        decode.chores.run()
        assert prefill.table.take_ended() == {f"p{index}"}
    assert prefill.table.take_counts()["rejected"] == ROUNDS


async def test_client_gone_between_the_two_engines() -> None:
    clock = Clock()
    network = FakeNetwork()
    prefill = Prefill(network, clock)
    releaser = LeaseReleaser(network.engine(), allow_remote=False)
    try:
        for index in range(ROUNDS):
            params = build_remote_prefill(prefill.finish(f"p{index}", (3,)), host="127.0.0.1", port=1)
            # The clock stands still: the lease cannot have ended by itself.
            assert await releaser.release_lease(params, "aborted", timeout_s=20.0) is True
            assert prefill.table.take_ended() == {f"p{index}"}
        assert await releaser.release_lease(params, "aborted") is False  # it is back already
        assert await releaser.release_lease({"nonsense": 1}) is False
        prefill.engine.close()
        assert await releaser.release_lease(params, "aborted") is False
    finally:
        releaser.close()

"""Prefill aborted after decode had been told to expect data; decode went on from half-filled memory."""

from __future__ import annotations

from _handoff import Clock, Decode, Prefill
from _vllm_shapes import BLOCK, Status, request
from kvferry.errors import StaleError
from kvferry.handoff import WorkerAddress
from kvferry.testing import FakeNetwork
from kvferry_vllm.scheduler import EngineFacts, SchedulerHalf


def test_a_prompt_aborted_between_its_chunks_is_never_offered() -> None:
    scheduler = SchedulerHalf(EngineFacts("engine", (BLOCK,), True, True, 30.0))
    scheduler.set_workers({0: WorkerAddress("ab" * 16, "127.0.0.1:1")})
    aborted = request(
        "p1",
        list(range(4 * BLOCK)),
        {"do_remote_decode": True},
        num_computed_tokens=BLOCK,  # one chunk of four
        status=Status.FINISHED_ABORTED,
    )
    assert scheduler.request_finished(aborted, ([4],)) == (False, None)
    assert scheduler.take_orders().handoff.leases == ()


def test_a_lease_that_the_prefill_side_ended_yields_no_tokens() -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode, prefill = Decode(network, clock), Prefill(network, clock)
    remote = prefill.finish("p1", (3, 4))
    network.before_transfer = lambda transfer: prefill.table.release(remote.address.lease, "aborted")
    result = decode.load("d1", remote, (7, 8))
    assert isinstance(result.error, StaleError)
    assert result.bytes == 0

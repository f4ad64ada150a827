"""The completion was counted in the error branch too."""

from __future__ import annotations

import pytest

from _handoff import Clock, Decode, Prefill
from kvferry import errors
from kvferry.testing import FakeNetwork

KINDS = [
    errors.DataCorruptError,
    errors.PeerLostError,
    errors.UnavailableError,
    errors.DeadlineExceededError,
    errors.StaleError,
    errors.AccessDeniedError,
    errors.ProtocolError,
    errors.InternalError,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_every_failure_is_a_failed_load(kind: type[errors.KVFerryError]) -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode, prefill = Decode(network, clock), Prefill(network, clock)

    def fail(transfer):
        transfer.plan.peer.local.slice_of(1, 0, 8)[:] = b"halfdone"  # something had been written already
        raise kind("the transfer failed")

    network.before_transfer = fail
    result = decode.load("d1", prefill.finish("p1", (3,)), (7,))
    assert result.error is not None
    assert result.bytes == 0
    assert "done" not in prefill.table.take_counts()
    assert decode.consumer.take_results() == []

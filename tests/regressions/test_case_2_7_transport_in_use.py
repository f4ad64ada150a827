"""Case 2.7: the transport used differs from the one configured and nobody notices."""

from __future__ import annotations

import logging

import pytest

from _engines import engine_pair, move, pieces
from kvferry.config import load_config
from kvferry.errors import ConfigError, InvalidArgumentError
from kvferry.transfer import Engine, TransferOptions, _logging


def read_one(pair):
    there = pair.server.register(bytearray(4096), name="m")
    here = pair.client.register(bytearray(4096), name="m")
    pair.peer.refresh()
    return move(pair.client, pair.peer, pieces((here.id, there.id, 0, 0, 4096)))


def test_a_transport_that_does_not_exist_is_an_error():
    with pytest.raises(ConfigError, match="rdma"):
        load_config({"transfer": {"transports": ["rdma"]}}, environ={})
    with pytest.raises(InvalidArgumentError, match="rdma"):
        Engine(TransferOptions(transports=("rdma",)))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_the_transport_in_use_is_told_everywhere(transport, caplog):
    with caplog.at_level(logging.DEBUG, logger="kvferry.transfer"), engine_pair(transport) as pair:
        transfer = read_one(pair)
        assert transfer.error is None
        assert transfer.transport == transport
        assert pair.peer.stats().transport == transport
        assert _logging.flush()
    lines = [record.getMessage() for record in caplog.records]
    assert any(f"transport={transport}" in line and pair.server.node_id in line for line in lines), lines


def test_without_fallback_a_transport_that_cannot_reach_the_peer_fails_the_transfer():
    with engine_pair("shm", fault_plan="shm:refuse") as pair:
        transfer = read_one(pair)
        assert transfer.error is not None
        assert transfer.transport == ""
        assert "shm" in str(transfer.error)


def test_with_fallback_the_note_says_why_another_was_chosen():
    with engine_pair("shm", "tcp", allow_fallback=True, fault_plan="shm:refuse") as pair:
        transfer = read_one(pair)
        assert transfer.error is None
        assert transfer.transport == "tcp"
        assert "shm" in pair.peer.transport_note

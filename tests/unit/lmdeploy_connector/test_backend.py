from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest

from kvferry.config import TransferOptions
from kvferry.errors import (
    DeadlineExceededError,
    KVFerryError,
    NotFoundError,
    OutOfRangeError,
    PeerLostError,
    ProtocolError,
)
from unit.lmdeploy_connector import fake_lmdeploy
from unit.lmdeploy_connector.fake_lmdeploy import Assignment, Endpoint, Init, Piece, Register

WAIT_S = 20.0
POOL_BYTES = 4096


@pytest.fixture
def lmdeploy() -> Iterator[None]:
    with fake_lmdeploy.installed():
        yield


class Side:
    """One engine's worker with two pools."""

    def __init__(self, **options: Any) -> None:
        from kvferry_lmdeploy.backend import Backend

        self.backend = Backend(TransferOptions(**options))
        self.pools = [np.zeros(POOL_BYTES, np.uint8) for _ in range(2)]

    def meet(self, name: str) -> Endpoint:
        """What LMDeploy does for a peer; the answer travels as JSON."""
        self.backend.p2p_initialize(Init(name, f"config of {name}"))
        for key, pool in enumerate(self.pools):
            self.backend.register_memory_region(Register.of(key, pool))
        return Endpoint(json.dumps(self.backend.endpoint_info(name, None)))

    def close(self) -> None:
        self.backend.close()


@pytest.fixture
def sides(lmdeploy: None) -> Iterator[tuple[Side, Side]]:
    """A prefill and a decode worker that are connected."""
    with ExitStack() as stack:
        prefill, decode = (stack.enter_context(closing(Side())) for _ in range(2))
        connect(prefill, decode)
        yield prefill, decode


def connect(prefill: Side, decode: Side) -> None:
    theirs, ours = prefill.meet("D"), decode.meet("P")
    prefill.backend.p2p_connect("D", ours)
    decode.backend.p2p_connect("P", theirs)


async def migrate(decode: Side, *pieces: Piece, name: str = "P") -> None:
    await asyncio.wait_for(decode.backend.p2p_migrate(Assignment(name, list(pieces))), WAIT_S)


async def test_pieces_of_all_pools_arrive_where_they_belong(sides: tuple[Side, Side]) -> None:
    prefill, decode = sides
    assert decode.backend.links["P"].remote_engine_config == "config of P"
    prefill.pools[0][:] = np.arange(POOL_BYTES) % 251
    prefill.pools[1][:] = np.arange(POOL_BYTES) % 239
    await migrate(decode, Piece(0, 100, 0, 50), Piece(1, 0, 4000, 96), Piece(0, 200, 1000, 1))
    expected = [np.zeros(POOL_BYTES, np.uint8) for _ in range(2)]
    expected[0][:50] = prefill.pools[0][100:150]
    expected[0][1000] = prefill.pools[0][200]
    expected[1][4000:] = prefill.pools[1][:96]
    for found, wanted in zip(decode.pools, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    await migrate(decode)


async def test_the_event_loop_goes_on_meanwhile(sides: tuple[Side, Side]) -> None:
    _, decode = sides
    release, move = threading.Event(), decode.backend._migrate

    def held(assignment: Any) -> None:
        assert release.wait(WAIT_S)
        move(assignment)

    decode.backend._migrate = held
    task = asyncio.create_task(migrate(decode, Piece(0, 0, 0, 16)))
    await asyncio.sleep(0)
    assert not task.done()
    release.set()  # reached only because the loop was not held up
    await task


@pytest.mark.parametrize(
    "piece",
    [
        Piece(0, POOL_BYTES, 0, 1), Piece(0, 0, POOL_BYTES - 1, 2), Piece(0, 0, 0, 1 << 63),
        Piece(0, (1 << 64) - 1, 0, 2), Piece(0, 0, (1 << 64) - 1, 2),
    ],
)  # fmt: skip
async def test_a_piece_that_leaves_its_pool_is_refused(sides: tuple[Side, Side], piece: Piece) -> None:
    with pytest.raises(OutOfRangeError, match="leaves"):
        await migrate(sides[1], piece)


async def test_a_connection_lost_on_the_way_is_made_once_more(sides: tuple[Side, Side]) -> None:
    prefill, decode = sides
    prefill.pools[0][:] = 5
    engine = decode.backend._engine
    execute, limits = engine.execute, []

    def lost_at_first(*pieces: Any, timeout_s: float) -> Any:
        limits.append(timeout_s)
        if len(limits) == 1:
            engine.forget(pieces[0])
            raise PeerLostError("the connection ended")
        return execute(*pieces, timeout_s=timeout_s)

    engine.execute = lost_at_first
    await migrate(decode, Piece(0, 0, 0, 16))
    assert decode.pools[0][:17].tolist() == [5] * 16 + [0]
    assert len(limits) == 2
    assert limits[1] < limits[0] == engine.engine.options.transfer_timeout_s


async def test_a_connection_lost_twice_is_an_error(sides: tuple[Side, Side]) -> None:
    _, decode = sides
    calls = []

    def lost(*pieces: Any, **options: Any) -> Any:
        calls.append(pieces)
        raise PeerLostError("the connection ended")

    decode.backend._engine.execute = lost
    with pytest.raises(PeerLostError):
        await migrate(decode, Piece(0, 0, 0, 16))
    assert len(calls) == 2


async def test_unknown_pools_and_engines_are_refused(sides: tuple[Side, Side]) -> None:
    with pytest.raises(NotFoundError, match="pool 9"):
        await migrate(sides[1], Piece(9, 0, 0, 1))
    with pytest.raises(NotFoundError, match="engine Q"):
        await migrate(sides[1], Piece(0, 0, 0, 1), name="Q")
    sides[1].backend.p2p_initialize(Init("Q"))
    with pytest.raises(NotFoundError, match="engine Q"):
        await migrate(sides[1], Piece(0, 0, 0, 1), name="Q")


async def test_a_peer_that_lies_about_its_pools_gets_nowhere(sides: tuple[Side, Side]) -> None:
    prefill, decode = sides
    info = json.loads(prefill.meet("D").endpoint_info)
    info["pools"]["0"]["length_bytes"] = 1 << 40
    decode.backend.p2p_connect("P", Endpoint(json.dumps(info)))
    with pytest.raises(OutOfRangeError):
        await migrate(decode, Piece(0, 1 << 30, 0, 16))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"session_id": "10.0.0.1:1", "mr_info": {}}', '{"type": "kvferry"}',
     '{"type": "kvferry", "session": 3, "pools": {}}', "[" * 100_000,
     '{"type": "kvferry", "session": "", "pools": {"0": {"address": -1.5, "length_bytes": 1}}}',
     '{"type": "kvferry", "session": "", "pools": {"a": {"address": 1, "length_bytes": 1}}}',
     '{"type": "kvferry", "session": "", "pools": {"0": {"address": -1, "length_bytes": 1}}}',
     '{"type": "kvferry", "session": "", "pools": {"0": {"address": 1, "length_bytes": -1}}}',
     '{"type":"kvferry", "session":"", "pools":{"0":{"address":2, "length_bytes":18446744073709551615}}}',
     '"' + "x" * (2 << 20) + '"'],
    ids=range(14),
)  # fmt: skip
def test_what_is_no_endpoint_of_ours_is_refused(sides: tuple[Side, Side], text: str) -> None:
    with pytest.raises(ProtocolError):
        sides[1].backend.p2p_connect("P", Endpoint(text))


def test_memory_is_registered_once_for_all_peers(sides: tuple[Side, Side]) -> None:
    prefill, _ = sides
    before = prefill.backend._engine._registered
    held = {key: len(regions) for key, regions in before.items()}
    prefill.meet("another")
    assert {key: len(regions) for key, regions in before.items()} == held
    prefill.pools[0] = np.zeros(2 * POOL_BYTES, np.uint8)  # the cache was made anew
    prefill.meet("another")
    assert sorted(length for _, length in before) == [POOL_BYTES, 2 * POOL_BYTES]


async def test_a_restarted_engine_is_met_anew_and_its_predecessor_dropped(sides: tuple[Side, Side]) -> None:
    prefill, decode = sides
    before = decode.backend.links["P"].remote.session
    prefill.close()
    with pytest.raises(KVFerryError):
        await migrate(decode, Piece(0, 0, 0, 16))
    with closing(Side()) as successor:
        successor.pools[0][:] = 7
        connect(successor, decode)
        await migrate(decode, Piece(0, 0, 0, 16))
        assert decode.pools[0][:16].tolist() == [7] * 16
        assert not decode.backend._engine.is_connected(before)


async def test_requests_go_on_while_a_second_proxy_connects_the_engines(
    sides: tuple[Side, Side],
) -> None:
    prefill, decode = sides
    prefill.pools[0][:] = 5
    theirs = prefill.meet("D")
    decode.meet("P")
    await migrate(decode, Piece(0, 0, 0, 16))
    assert decode.pools[0][:16].tolist() == [5] * 16
    decode.backend.p2p_connect("P", theirs)
    await migrate(decode, Piece(0, 0, 32, 16))
    assert decode.pools[0].tolist().count(5) == 32


async def test_a_peer_that_does_not_answer_ends_in_time(lmdeploy: None) -> None:
    with closing(Side(connect_timeout_s=0.5)) as decode, closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the kernel takes the connection, and nobody reads from it
        decode.meet("P")
        session = f"{'1' * 32}@127.0.0.1:{silent.getsockname()[1]}"
        info = Endpoint(json.dumps({"type": "kvferry", "session": session, "pools": {}}))
        with pytest.raises(DeadlineExceededError):
            await asyncio.wait_for(asyncio.to_thread(decode.backend.p2p_connect, "P", info), WAIT_S)

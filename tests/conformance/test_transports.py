"""What every transport must do, seen from Python: one suite for all, and for ways to break them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from _engines import Child, Pair, engine_pair, move, options, pattern, pieces
from kvferry.errors import DeadlineExceededError, PeerLostError, UnavailableError
from kvferry.transfer import Engine, Peer, Region, Transfer

LENGTH = 8 << 20
SIZES = [1, 7, 63, 64, 4095, 4096, 65536 + 1, (1 << 20) - 1, (4 << 20) + 3]


class Wired(NamedTuple):
    """A client wired to a server process: one region each, the client's memory, what the server's held."""

    engine: Engine
    peer: Peer
    child: Child
    local: Region
    near: np.ndarray
    remote: int
    far: np.ndarray
    transport: str


WAYS = {
    "tcp": ("tcp", False, {}),
    "tcp-4-streams": ("tcp", False, {"tcp_streams": 4}),
    "tcp-checksum": ("tcp", False, {"checksum": True}),
    "tcp-small-slices": ("tcp", False, {"slice_bytes": 64 << 10}),
    "shm-foreign": ("shm", False, {}),
    "shm-arena": ("shm", True, {}),
    "shm-2-lanes": ("shm", True, {"shm_lanes": 2}),
}


@pytest.fixture(scope="module", params=list(WAYS))
def wired(request):
    transport, arena, extra = WAYS[request.param]
    region = {"name": "m", "length": LENGTH, "allocate": arena, "seed": 3}
    with (
        Child([region], transports=[transport], allow_fallback=False, **extra) as child,
        Engine(options(transport, **extra)) as engine,
    ):
        if arena:
            local = engine.allocate(LENGTH, name="near", access="rw")
            near = np.frombuffer(local.memory, dtype=np.uint8)
        else:
            near = np.zeros(LENGTH, dtype=np.uint8)
            local = engine.register(near, name="near", access="rw")
        peer = engine.connect(child.endpoint, expected=child.node_id)
        yield Wired(engine, peer, child, local, near, peer.region("m").id, pattern(LENGTH, 3), transport)


def row(wired: Wired, local_offset: int, remote_offset: int, length: int) -> tuple[int, ...]:
    return (wired.local.id, wired.remote, local_offset, remote_offset, length)


@pytest.mark.parametrize("size", SIZES)
def test_read_moves_exactly_the_asked_bytes(wired, size):
    wired.near[:] = 0xEE
    transfer = move(wired.engine, wired.peer, pieces(row(wired, 13, 31, size)))
    assert transfer.error is None
    np.testing.assert_array_equal(wired.near[13 : 13 + size], wired.far[31 : 31 + size])
    assert (wired.near[:13] == 0xEE).all()
    assert (wired.near[13 + size :] == 0xEE).all()
    assert transfer.transport == wired.transport


@pytest.mark.parametrize("size", SIZES)
def test_write_moves_exactly_the_asked_bytes(wired, size):
    data = pattern(size, seed=size)
    wired.near[:size] = data
    assert move(wired.engine, wired.peer, pieces(row(wired, 0, 100, size)), "write").error is None
    wired.far[100 : 100 + size] = data
    back = move(wired.engine, wired.peer, pieces(row(wired, 0, 0, size + 200)))
    assert back.error is None
    np.testing.assert_array_equal(wired.near[: size + 200], wired.far[: size + 200])


def test_thousands_of_scattered_pieces_land_where_they_belong(wired):
    block = 1024
    count = LENGTH // block
    rng = np.random.default_rng(11)
    here, there = rng.permutation(count)[:5000], rng.permutation(count)[:5000]
    rows = np.empty((5000, 5), dtype=np.uint64)
    rows[:, 0], rows[:, 1], rows[:, 4] = wired.local.id, wired.remote, block
    rows[:, 2], rows[:, 3] = here * block, there * block
    wired.near[:] = 0
    transfer = move(wired.engine, wired.peer, rows)
    assert transfer.error is None
    np.testing.assert_array_equal(
        wired.near.reshape(count, block)[here], wired.far.reshape(count, block)[there]
    )
    untouched = np.delete(np.arange(count), here)
    assert not wired.near.reshape(count, block)[untouched].any()


def test_many_transfers_at_once_do_not_mix(wired):
    part = LENGTH // 64
    wired.near[:] = 0
    order = np.random.default_rng(5).permutation(64)
    transfers = [
        wired.engine.submit(
            wired.engine.prepare(wired.peer, pieces(row(wired, n * part, n * part, part)), "read")
        )
        for n in order.tolist()
    ]
    assert all(transfer.wait() for transfer in transfers)
    assert [transfer.error for transfer in transfers] == [None] * 64
    np.testing.assert_array_equal(wired.near, wired.far)


def test_control_messages_pass_while_data_moves(wired):
    plan = wired.engine.prepare(wired.peer, pieces(row(wired, 0, 0, LENGTH)), "read")
    transfers = [wired.engine.submit(plan) for _ in range(8)]
    wired.engine.send(wired.peer, b"are you there?")
    message = wired.engine.next_message(10.0)
    assert message is not None
    assert message.body == b"echo:are you there?"
    assert all(transfer.wait() for transfer in transfers)


def test_notify_follows_visible_data(wired):
    data = pattern(1 << 20, seed=77)
    wired.near[: 1 << 20] = data
    transfer = move(wired.engine, wired.peer, pieces(row(wired, 0, 0, 1 << 20)), "write", notify=b"written")
    assert transfer.error is None
    message = wired.engine.next_message(10.0)
    assert message is not None
    assert message.body == b"echo:written"
    wired.far[: 1 << 20] = data
    shown = wired.child.ask("bytes", name="m", offset=(1 << 20) - 64, length=64)
    assert bytes.fromhex(shown) == data[-64:].tobytes()


def test_peer_knows_its_transport_and_why(wired):
    move(wired.engine, wired.peer, pieces(row(wired, 0, 0, 10)))
    assert wired.peer.stats().transport == wired.transport
    assert wired.peer.same_host


PIECES = 16


def read_through(transports: tuple[str, ...], plan: str, **extra: Any) -> tuple[Transfer, Pair]:
    """Read a MiB in 16 pieces while `plan` breaks things. No piece may be called moved that was not."""
    timeout_s = extra.pop("timeout_s", 10.0)
    with engine_pair(*transports, fault_plan=plan, **extra) as pair:
        far, near = pattern(1 << 20, 9), np.zeros(1 << 20, dtype=np.uint8)
        there = pair.server.register(far, name="m")
        here = pair.client.register(near, name="m")
        pair.peer.refresh()
        size = (1 << 20) // PIECES
        offsets = [2 * size * (n % (PIECES // 2)) + size * (n >= PIECES // 2) for n in range(PIECES)]
        rows = pieces(*((here.id, there.id, offset, offset, size) for offset in offsets))
        transfer = move(pair.client, pair.peer, rows, timeout_s=timeout_s)
        for error, offset in zip(transfer.piece_errors, offsets, strict=True):
            if error is None:
                part = slice(offset, offset + size)
                np.testing.assert_array_equal(near[part], far[part])
        return transfer, pair


@pytest.fixture(params=["tcp", "shm"])
def transport(request):
    return request.param


def test_a_late_transport_is_only_late(transport):
    transfer, _pair = read_through((transport,), f"{transport}:delay=100")
    assert transfer.error is None
    assert transfer.seconds >= 0.1


@pytest.mark.parametrize("action", ["cut", "short"])
def test_a_rail_that_breaks_once_is_opened_again(transport, action):
    transfer, _pair = read_through((transport,), f"{transport}:{action}x1")
    assert transfer.error is None


@pytest.mark.parametrize("action", ["cut", "short", "refuse"])
def test_a_transport_that_stays_broken_fails_with_its_reason(transport, action):
    transfer, _pair = read_through((transport,), f"{transport}:{action}")
    assert isinstance(transfer.error, (UnavailableError, PeerLostError))
    assert transport in str(transfer.error) or "rail" in str(transfer.error)


@pytest.mark.parametrize("action", ["cut", "short", "refuse"])
def test_another_transport_takes_over_if_allowed(action):
    transfer, pair = read_through(("shm", "tcp"), f"shm:{action}", allow_fallback=True)
    assert transfer.error is None
    assert transfer.transport.endswith("tcp")
    assert pair.client.counters()["tcp_bytes"] > 0


def test_a_transport_that_hangs_fails_at_the_deadline(transport):
    transfer, _pair = read_through((transport,), f"{transport}:hang", timeout_s=0.5)
    assert isinstance(transfer.error, DeadlineExceededError)
    assert transfer.seconds < 3.0

"""Transfers named by addresses: between two real engines over loopback, in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from _engines import wait_until
from kvferry.config import TransferOptions
from kvferry.errors import (
    DeadlineExceededError,
    IdentityMismatchError,
    InvalidArgumentError,
    KVFerryError,
    NotFoundError,
    OutOfRangeError,
)
from kvferry.transfer import AddressedEngine, Engine, Peer
from kvferry.transfer.addressed import _Map

SIZE = 4096
WAIT_S = 30.0


class Side:
    """An engine, and memory of it."""

    def __init__(self) -> None:
        self.engine = Engine(TransferOptions())
        self.addressed = AddressedEngine(self.engine)
        self.bytes = np.zeros(SIZE, np.uint8)
        self.address = self.bytes.ctypes.data

    def register(self, length: int = SIZE) -> None:
        self.addressed.register(self.address, length)


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    source, target = Side(), Side()
    yield source, target
    source.engine.close()
    target.engine.close()


def addresses(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def write(source: Side, target: Side, near: list[int], far: list[int], lengths: list[int]) -> None:
    transfer = source.addressed.execute(
        target.addressed.session,
        "write",
        addresses(*(source.address + at for at in near)),
        addresses(*(target.address + at for at in far)),
        addresses(*lengths),
        timeout_s=30,
    )
    transfer.raise_if_failed()


def test_pieces_land_where_their_addresses_say(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.register()
    target.register()
    source.bytes[:] = np.arange(SIZE) % 251
    write(source, target, [0, 1000], [8, 3000], [16, 1096])
    assert (target.bytes[8:24] == source.bytes[:16]).all()
    assert (target.bytes[3000:4096] == source.bytes[1000:2096]).all()
    assert not target.bytes[:8].any()
    assert not target.bytes[24:3000].any()


def test_reads_go_the_other_way(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.register()
    target.register()
    target.bytes[:] = 7
    transfer = source.addressed.execute(
        target.addressed.session,
        "read",
        addresses(source.address),
        addresses(target.address),
        addresses(SIZE),
    )
    transfer.raise_if_failed()
    assert (source.bytes == 7).all()


@pytest.mark.parametrize(
    ("near", "far", "length"), [(0, 1, SIZE), (1, 0, SIZE), (0, SIZE, 1), (SIZE, 0, 1), (0, -1, 1)]
)
def test_a_piece_outside_of_registered_memory_moves_nothing(
    sides: tuple[Side, Side], near: int, far: int, length: int
) -> None:
    source, target = sides
    source.register()
    target.register()
    source.bytes[:] = 9
    with pytest.raises(OutOfRangeError, match="registered ranges"):
        write(source, target, [0, near], [0, far], [1, length])
    assert not target.bytes.any()


def test_lengths_near_the_end_of_the_address_space_are_refused(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.register()
    target.register()
    with pytest.raises(OutOfRangeError):
        write(source, target, [8], [8], [(1 << 64) - 4])


def test_memory_registered_after_the_first_contact_is_found(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.register()
    source.addressed.connect(target.addressed.session)
    target.register()
    source.bytes[:] = 5
    write(source, target, [0], [0], [SIZE])
    assert (target.bytes == 5).all()


def test_memory_registered_anew_is_found_under_its_new_region(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.register()
    target.register()
    write(source, target, [0], [0], [8])
    target.addressed.unregister(target.address)
    target.register()
    source.bytes[:] = 3
    write(source, target, [0], [0], [SIZE])
    assert (target.bytes == 3).all()


def test_a_range_within_another_one_does_not_hide_it(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.register()
    target.register()
    target.addressed.register(target.address + 100, 50)
    source.bytes[:] = 4
    write(source, target, [0, 0], [110, 140], [20, 60])
    assert (target.bytes[110:130] == 4).all()
    assert (target.bytes[140:200] == 4).all()


def test_the_range_that_holds_a_piece_is_found_among_nested_ones() -> None:
    regions = _Map([(100, 800, 1), (200, 100, 2), (220, 20, 3), (400, 50, 4), (1000, 10, 5)])
    near = addresses(230, 230, 230, 410, 150, 1000, 890, 50, 990)
    lengths = addresses(5, 30, 300, 100, 20, 10, 20, 10, 5)
    ids, offsets, lost = regions.find(near, lengths)
    assert isinstance(ids, np.ndarray)
    assert isinstance(offsets, np.ndarray)
    assert lost is not None
    assert lost.tolist() == [False] * 6 + [True] * 3
    assert ids[:6].tolist() == [3, 1, 1, 1, 1, 5]
    assert offsets[2:6].tolist() == [130, 310, 50, 0]
    for number in range(near.size):
        alone = slice(number, number + 1)
        assert (regions.find(near[alone], lengths[alone])[2] is not None) == lost[number]


def test_pieces_that_lie_nowhere_are_found_out_in_no_more_steps_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It held the interpreter's lock for seconds: a step for each piece and region."""
    steps = []
    outside = _Map._outside
    monkeypatch.setattr(_Map, "_outside", lambda *args: steps.append(1) or outside(*args))
    regions = _Map([(4096 * number, 64, number) for number in range(128)])
    near = np.arange(2000, dtype=np.uint64) * 64 + (1 << 40)
    lost = regions.find(near, near * 0 + 8)[2]
    assert lost is not None
    assert lost.all()
    assert len(steps) <= 2


def test_a_range_goes_with_its_last_registration(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.register()
    target.register()
    target.register()
    target.addressed.unregister(target.address)
    write(source, target, [0], [0], [8])
    target.addressed.unregister(target.address, SIZE)
    with pytest.raises(KVFerryError):
        write(source, target, [0], [0], [8])
    with pytest.raises(NotFoundError, match="no memory is registered"):
        target.addressed.unregister(target.address)


def test_a_session_names_one_process_only(sides: tuple[Side, Side]) -> None:
    source, target = sides
    other = f"{'0' * 31}1@{target.engine.endpoint}"
    with pytest.raises(IdentityMismatchError):
        source.addressed.connect(other)
    assert source.addressed.is_connected(other) is False
    with pytest.raises(InvalidArgumentError, match="is no session"):
        source.addressed.connect(str(target.engine.endpoint))


def test_the_time_for_a_transfer_includes_connecting(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = sides
    source.register()
    target.register()
    limits = []
    connect = source.engine.connect

    def noting(*args: Any, timeout_s: float | None, **kwargs: Any) -> Peer:
        limits.append(timeout_s)
        return connect(*args, timeout_s=timeout_s, **kwargs)

    monkeypatch.setattr(source.engine, "connect", noting)
    limit_s = source.engine.options.connect_timeout_s - 1
    piece = (addresses(source.address), addresses(target.address), addresses(8))
    source.addressed.execute(target.addressed.session, "write", *piece, timeout_s=limit_s).raise_if_failed()
    assert len(limits) == 1
    assert limits[0] is not None
    assert limits[0] <= limit_s


def test_who_waits_for_another_threads_connect_waits_no_longer_than_it_may(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = sides
    source.register()
    target.register()
    begun, go_on = threading.Event(), threading.Event()
    connect = source.engine.connect

    def slow(*args: Any, **kwargs: Any) -> Peer:
        begun.set()
        assert go_on.wait(60)
        return connect(*args, **kwargs)

    monkeypatch.setattr(source.engine, "connect", slow)
    piece = (addresses(source.address), addresses(target.address), addresses(8))
    session = target.addressed.session
    with ThreadPoolExecutor(2) as threads:
        try:
            first = threads.submit(source.addressed.connect, session, timeout_s=60)
            assert begun.wait(60)
            second = threads.submit(source.addressed.execute, session, "write", *piece, timeout_s=0.05)
            with pytest.raises(DeadlineExceededError, match="another thread"):
                second.result(30)
            assert not first.done()
        finally:
            go_on.set()
        assert first.result(60).alive


def test_connections_are_kept_and_forgotten(sides: tuple[Side, Side]) -> None:
    source, target = sides
    session = target.addressed.session
    first = source.addressed.connect(session)
    assert source.addressed.connect(session) == first
    assert source.addressed.is_connected(session)
    source.addressed.forget(session)
    assert not source.addressed.is_connected(session)
    assert source.addressed.connect(session) != first


def test_sessions_of_peers_that_are_gone_are_forgotten(sides: tuple[Side, Side]) -> None:
    source, target = sides
    for _ in range(3):
        other = Side()
        peer = source.addressed.connect(other.addressed.session)
        other.engine.close()
        wait_until(lambda peer=peer: not peer.alive, WAIT_S, "the loss of the peer")
        with pytest.raises(KVFerryError):
            source.addressed.connect(other.addressed.session, timeout_s=5)
    source.addressed.connect(target.addressed.session)
    assert list(source.addressed._known) == [target.addressed.session]
    assert not source.addressed._turns

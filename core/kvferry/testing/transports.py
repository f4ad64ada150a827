"""What every transport must do, as one class of tests for pytest: subclass it, and all of it runs.

    from kvferry.testing.transports import TransportConformance

    class TestTcpWithChecksums(TransportConformance):
        transport = "tcp"
        options = {"checksum": True}

Put `pytest.register_assert_rewrite("kvferry.testing.transports")` before the import for readable failures.
Tests marked `slow` move more than 4 GiB.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from kvferry.errors import (
    AccessDeniedError,
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    KVFerryError,
    NotFoundError,
    OutOfRangeError,
    PeerLostError,
    StaleError,
)
from kvferry.testing.engines import Bytes, move, pattern, pieces, sparse
from kvferry.testing.rigs import ProcessRig, Rig, Scene, aliased
from kvferry.testing.waiting import wait_until
from kvferry.transfer.engine import Access, Op

LENGTH = 8 << 20
SIZES = [0, 1, 7, 63, 64, 4095, 4096, (64 << 10) + 1, (1 << 20) - 1, (4 << 20) + 3]
GIB = 1 << 30
TOP = 2**64 - 1

PATTERNS: dict[str, Callable[[int], Bytes]] = {
    "zeros": lambda n: np.zeros(n, dtype=np.uint8),
    "ones": lambda n: np.full(n, 0xFF, dtype=np.uint8),
    "counting bytes": lambda n: np.arange(n, dtype=np.uint64).astype(np.uint8),
    "own addresses": lambda n: np.arange(n // 8, dtype=np.uint64).view(np.uint8),
    "random": lambda n: pattern(n, 41),
    "one bit": lambda n: (np.arange(n) == n // 2).astype(np.uint8) << 7,
}


def _digest(data: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).data).hexdigest()


ZEROS = _digest(np.zeros(LENGTH, dtype=np.uint8))


class TransportConformance:
    """Set `transport`, and what else is special; or override `make_rig`.

    The suite needs about 64 MiB of memory, one child process, and no network beyond loopback.
    """

    transport: ClassVar[str]  # what Transfer.transport says
    options: ClassVar[Mapping[str, Any]] = {}  # further fields of TransferOptions, for both engines
    near_options: ClassVar[Mapping[str, Any]] = {}  # only for the engine that submits
    allocate: ClassVar[bool] = False  # memory of both ends: the engines' own, or ordinary memory
    beyond_4_gib: ClassVar[bool] = True  # whether to run the tests with offsets and lengths above 4 GiB

    @classmethod
    def make_rig(cls) -> Rig:
        """Two engines that reach each other only by the transport under test."""
        both = {"transports": (cls.transport,), "allow_fallback": False, **cls.options}
        return ProcessRig({**both, **cls.near_options}, both, allocate=cls.allocate)

    @pytest.fixture(scope="class")
    @classmethod
    def rig(cls) -> Iterator[Rig]:
        """One rig for all tests of a class."""
        with cls.make_rig() as rig:
            yield rig

    @pytest.fixture
    def scene(self, rig: Rig) -> Iterator[Scene]:
        """8 MiB at each end; the far end holds a pattern, the near end zeros."""
        with rig.scene(LENGTH, allocate=self.allocate) as scene:
            yield scene

    # Bytes: exactly those asked for, wherever they lie.

    @pytest.mark.parametrize("size", SIZES)
    def test_a_read_moves_exactly_the_asked_bytes(self, rig: Rig, scene: Scene, size: int) -> None:
        near = scene.near.bytes
        near[:] = 0xEE
        transfer = move(rig.engine, rig.peer, scene.rows((13, 31, size)))
        assert transfer.error is None
        np.testing.assert_array_equal(near[13 : 13 + size], scene.held[31 : 31 + size])
        assert (near[:13] == 0xEE).all()
        assert (near[13 + size :] == 0xEE).all()
        assert transfer.bytes == size
        assert size == 0 or transfer.transport == self.transport

    @pytest.mark.parametrize("size", SIZES)
    def test_a_write_moves_exactly_the_asked_bytes(self, rig: Rig, scene: Scene, size: int) -> None:
        data = pattern(size, seed=size)
        scene.near.bytes[7 : 7 + size] = data
        assert move(rig.engine, rig.peer, scene.rows((7, 100, size)), "write").error is None
        scene.held[100 : 100 + size] = data
        assert scene.far.digest(0, LENGTH) == _digest(scene.held)

    @pytest.mark.parametrize("name", PATTERNS)
    def test_no_pattern_of_bytes_is_special(self, rig: Rig, scene: Scene, name: str) -> None:
        data = PATTERNS[name](1 << 20)
        near = scene.near.bytes
        near[: len(data)] = data
        assert move(rig.engine, rig.peer, scene.rows((0, 4096, len(data))), "write").error is None
        assert scene.far.digest(4096, len(data)) == _digest(data)
        near[:] = 0x55
        assert move(rig.engine, rig.peer, scene.rows((8192, 4096, len(data)))).error is None
        np.testing.assert_array_equal(near[8192 : 8192 + len(data)], data)

    @pytest.mark.parametrize("op", ["read", "write"])
    def test_thousands_of_scattered_pieces_land_where_they_belong(
        self, rig: Rig, scene: Scene, op: str
    ) -> None:
        block, count, moved = 1024, LENGTH // 1024, 5000
        rng = np.random.default_rng(11)
        here, there = rng.permutation(count)[:moved], rng.permutation(count)[:moved]
        table = np.empty((moved, 5), dtype=np.uint64)
        table[:, 0], table[:, 1], table[:, 4] = scene.near.region.id, scene.far.id, block
        table[:, 2], table[:, 3] = here * block, there * block
        near, held = scene.near.bytes.reshape(count, block), scene.held.reshape(count, block)
        near[:] = pattern(LENGTH, 12).reshape(count, block)
        before = near.copy()
        assert move(rig.engine, rig.peer, table, op).error is None
        if op == "read":
            before[here] = held[there]
        else:
            held[there] = near[here]
        np.testing.assert_array_equal(near, before)
        assert scene.far.digest(0, LENGTH) == _digest(scene.held)

    def test_neighbours_become_one_run_in_whatever_order_they_come(self, rig: Rig, scene: Scene) -> None:
        order = np.random.default_rng(2).permutation(256)
        rows = scene.rows(*((int(n) * 4096, 65536 + int(n) * 4096, 4096) for n in order))
        plan = rig.engine.prepare(rig.peer, rows, "read")
        assert (plan.pieces, plan.runs, plan.bytes) == (256, 1, 1 << 20)
        transfer = rig.engine.submit(plan)
        assert transfer.wait()
        assert transfer.piece_errors == [None] * 256
        np.testing.assert_array_equal(scene.near.bytes[: 1 << 20], scene.held[65536 : 65536 + (1 << 20)])

    def test_pieces_may_share_their_source(self, rig: Rig, scene: Scene) -> None:
        near, size, step = scene.near.bytes, 100_000, 30_011
        rows = scene.rows(*((n * size, n * step, size) for n in range(8)))
        assert move(rig.engine, rig.peer, rows).error is None
        for n in range(8):
            expected = scene.held[n * step : n * step + size]
            np.testing.assert_array_equal(near[n * size : (n + 1) * size], expected)
        near[:] = pattern(LENGTH, 19)
        rows = scene.rows(*((n * step, n * size, size) for n in range(8)))
        assert move(rig.engine, rig.peer, rows, "write").error is None
        for n in range(8):
            assert scene.far.digest(n * size, size) == _digest(near[n * step : n * step + size])

    def test_no_pieces_and_empty_pieces_are_fine(self, rig: Rig, scene: Scene) -> None:
        nothing = move(rig.engine, rig.peer, pieces())
        assert (nothing.error, nothing.piece_errors, nothing.bytes) == (None, [], 0)
        rows = scene.rows((0, 0, 0), (5, 5, 5), (LENGTH, LENGTH, 0))
        transfer = move(rig.engine, rig.peer, rows)
        assert transfer.piece_errors == [None] * 3
        np.testing.assert_array_equal(scene.near.bytes[5:10], scene.held[5:10])
        assert not scene.near.bytes[:5].any()

    def test_offsets_above_4_gib_are_kept_whole(self, rig: Rig) -> None:
        if not self.beyond_4_gib:
            pytest.skip("run by another way of this transport")
        length = 5 * GIB + 3
        near, far = rig.near_of(sparse(length)), rig.far("huge", length, empty=True)
        scene = Scene(near, far, near.bytes)
        places = [2 * GIB - 17, 4 * GIB - 2048, 4 * GIB + 8192, length - 4096]
        for seed, place in enumerate(places):
            far.put(place, pattern(4096, seed).tobytes())
        shift = 8191
        rows = scene.rows(*((place - shift, place, 4096) for place in places))
        assert move(rig.engine, rig.peer, rows).error is None
        for seed, place in enumerate(places):
            np.testing.assert_array_equal(
                near.bytes[place - shift : place - shift + 4096], pattern(4096, seed)
            )
            low = (place - shift) % (4 * GIB)
            assert low == place - shift or not near.bytes[low : low + 4096].any(), "an offset was cut"
        rows = scene.rows(*((place - shift, place - 2 * shift, 4096) for place in places))
        assert move(rig.engine, rig.peer, rows, "write").error is None
        for seed, place in enumerate(places):
            assert far.content(place - 2 * shift, 4096) == pattern(4096, seed).tobytes()
        far.unregister()
        near.region.unregister(25.0)

    @pytest.mark.slow
    @pytest.mark.parametrize("op", ["read", "write"])
    def test_one_piece_longer_than_4_gib_is_moved_whole(self, rig: Rig, op: str) -> None:
        if not self.beyond_4_gib:
            pytest.skip("run by another way of this transport")
        size, page = 4 * GIB + 5, 4096
        marks = ((0, page), (2 * GIB, page), (4 * GIB - page, page), (4 * GIB, page))
        near = rig.near_of(aliased(4 * GIB + page, marks))
        if op == "write":
            self._write_of_a_long_piece(rig, Scene(near, rig.far("end", page), near.bytes), size)
            return
        far = rig.far("huge", size, empty=True)
        for seed, (place, _length) in enumerate(marks):
            far.put(place, pattern(min(page, size - place), seed).tobytes())
        rows = Scene(near, far, near.bytes).rows((0, 0, size))
        assert move(rig.engine, rig.peer, rows, timeout_s=60.0).error is None
        for seed, (place, _length) in enumerate(marks):
            expected = pattern(min(page, size - place), seed)
            np.testing.assert_array_equal(near.bytes[place : place + len(expected)], expected)
        assert not near.bytes[size:].any()
        far.unregister()
        near.region.unregister(25.0)

    def _write_of_a_long_piece(self, rig: Rig, scene: Scene, size: int) -> None:
        """A length is never cut to 32 bits: it is more than the far end has, and is refused as such."""
        with pytest.raises(OutOfRangeError):
            rig.engine.prepare(rig.peer, scene.rows((0, 0, size)), "write")
        scene.far.unregister()
        scene.near.region.unregister(25.0)

    # Refusals: before anything moves, or of the one piece that is wrong.

    @pytest.mark.parametrize(
        ("offset", "length"),
        [(LENGTH, 1), (LENGTH - 1, 2), (0, LENGTH + 1), (1 << 63, 1), (TOP, 2), (1, TOP), (TOP, TOP)],
    )
    def test_what_lies_outside_is_refused(self, rig: Rig, scene: Scene, offset: int, length: int) -> None:
        for op in ("read", "write"):
            for row in (scene.row(offset, 0, length), scene.row(0, offset, length)):
                with pytest.raises((OutOfRangeError, InvalidArgumentError)):
                    rig.engine.prepare(rig.peer, pieces(row), op)

    def test_regions_that_do_not_exist_are_refused(self, rig: Rig, scene: Scene) -> None:
        near, far = scene.near.region.id, scene.far.id
        for row in ((near + 900, far, 0, 0, 1), (near, far + 900, 0, 0, 1), (near, TOP >> 32, 0, 0, 1)):
            with pytest.raises((NotFoundError, StaleError)):
                rig.engine.prepare(rig.peer, pieces(row), "read")

    def test_rights_are_kept(self, rig: Rig, scene: Scene) -> None:
        ways: tuple[tuple[Access, Op, Op], ...] = (("r", "read", "write"), ("w", "write", "read"))
        for access, allowed, denied in ways:
            far = rig.far("limited", 4096, seed=5, access=access)
            rows = Scene(scene.near, far, scene.held).rows((0, 0, 4096))
            assert move(rig.engine, rig.peer, rows, allowed).error is None
            with pytest.raises(AccessDeniedError):
                move(rig.engine, rig.peer, rows, denied).raise_if_failed()
            far.unregister()

    @pytest.mark.parametrize("op", ["read", "write"])
    def test_a_replaced_region_is_stale_and_its_neighbours_are_not(
        self, rig: Rig, scene: Scene, op: Any
    ) -> None:
        doomed = rig.far("doomed", 4096, seed=6)
        rows = pieces(
            scene.row(0, 0, 4096),
            (scene.near.region.id, doomed.id, 4096, 0, 4096),
            scene.row(8192, 8192, 4096),
        )
        plan = rig.engine.prepare(rig.peer, rows, op)
        doomed.unregister()
        heir = rig.far("heir", 4096, seed=7)
        transfer = rig.engine.submit(plan)
        assert transfer.wait()
        first, second, third = transfer.piece_errors
        assert isinstance(second, StaleError)
        assert (first, third) == (None, None)
        assert isinstance(transfer.error, StaleError)
        assert heir.digest(0, 4096) == _digest(pattern(4096, 7))
        if op == "read":
            assert not scene.near.bytes[4096:8192].any()
        heir.unregister()

    # Time: cancel, deadline, and memory that is taken back.

    def test_a_cancelled_transfer_settles_and_touches_nothing_any_more(self, rig: Rig, scene: Scene) -> None:
        plan = rig.engine.prepare(rig.peer, scene.rows((0, 0, LENGTH)), "read")
        near = scene.near.bytes
        for round_number in range(6):
            transfer = rig.engine.submit(plan)
            time.sleep(0.0004 * round_number)
            transfer.cancel()
            assert transfer.wait(30.0)
            assert transfer.error is None or isinstance(transfer.error, CancelledError)
            near[:] = 0xEE
            assert move(rig.engine, rig.peer, scene.rows((0, 0, 70_000))).error is None
            np.testing.assert_array_equal(near[:70_000], scene.held[:70_000])
            assert (near[70_000:] == 0xEE).all(), "a cancelled transfer still writes"

    def test_cancelling_some_leaves_the_others_alone(self, rig: Rig, scene: Scene) -> None:
        part = LENGTH // 32
        transfers = [
            rig.engine.submit(rig.engine.prepare(rig.peer, scene.rows((n * part, n * part, part)), "read"))
            for n in range(32)
        ]
        for transfer in transfers[::2]:
            transfer.cancel()
        assert all(transfer.wait() for transfer in transfers)
        assert all(isinstance(t.error, CancelledError) or t.error is None for t in transfers[::2])
        for n in range(1, 32, 2):
            assert transfers[n].error is None
            part_of = slice(n * part, (n + 1) * part)
            np.testing.assert_array_equal(scene.near.bytes[part_of], scene.held[part_of])

    def test_a_deadline_ends_a_transfer_and_only_it(self, rig: Rig, scene: Scene) -> None:
        transfer = move(rig.engine, rig.peer, scene.rows((0, 0, LENGTH)), timeout_s=0.0)
        assert isinstance(transfer.error, DeadlineExceededError)
        assert any(transfer.piece_errors)
        assert move(rig.engine, rig.peer, scene.rows((0, 0, 4096))).error is None

    def test_our_memory_is_ours_again_once_unregistered(self, rig: Rig, scene: Scene) -> None:
        for round_number in range(6):
            near = rig.near(LENGTH)
            rows = Scene(near, scene.far, scene.held).rows((0, 0, LENGTH))
            transfer = rig.engine.submit(rig.engine.prepare(rig.peer, rows, "read"))
            time.sleep(0.0004 * round_number)
            near.region.unregister(25.0)
            near.bytes[:] = 0x11
            assert transfer.wait(25.0), "nothing moves any more, so that it must be over"
            assert move(rig.engine, rig.peer, scene.rows((0, 0, 4096))).error is None
            assert (near.bytes == 0x11).all()

    @pytest.mark.parametrize("op", ["read", "write"])
    def test_the_owner_gets_its_memory_back_while_it_is_used(self, rig: Rig, scene: Scene, op: Any) -> None:
        for round_number in range(6):
            far = rig.far("short-lived", LENGTH, seed=round_number)
            rows = Scene(scene.near, far, scene.held).rows((0, 0, LENGTH))
            transfer = rig.engine.submit(rig.engine.prepare(rig.peer, rows, op))
            time.sleep(0.0004 * round_number)
            far.unregister()
            if not self.allocate:
                far.clear(LENGTH)
            assert transfer.wait()
            assert transfer.error is None or isinstance(transfer.error, (StaleError, NotFoundError))
            if not self.allocate:
                assert far.digest(0, LENGTH) == ZEROS, "written after it was taken back"
            if op == "read" and transfer.error is None:
                np.testing.assert_array_equal(scene.near.bytes, pattern(LENGTH, round_number))

    def test_what_is_announced_can_be_seen(self, rig: Rig, scene: Scene) -> None:
        for round_number in range(5):
            data = pattern(1 << 20, seed=77 + round_number)
            scene.near.bytes[: 1 << 20] = data
            rows = scene.rows((0, 0, 1 << 20))
            transfer = move(rig.engine, rig.peer, rows, "write", notify=b"written")
            assert transfer.error is None
            self.await_echo(rig, b"written")
            assert scene.far.digest(0, 1 << 20) == _digest(data)

    def await_echo(self, rig: Rig, body: bytes) -> None:
        """The far engine answers each message with itself; override for one that does not."""
        message = rig.engine.next_message(10.0)
        assert message is not None
        assert message.body == b"echo:" + body

    # Many at once.

    def test_many_transfers_at_once_do_not_mix(self, rig: Rig, scene: Scene) -> None:
        part = LENGTH // 64
        order = np.random.default_rng(5).permutation(64).tolist()
        transfers = [
            rig.engine.submit(rig.engine.prepare(rig.peer, scene.rows((n * part, n * part, part)), "read"))
            for n in order
        ]
        assert all(transfer.wait() for transfer in transfers)
        assert [transfer.error for transfer in transfers] == [None] * 64
        np.testing.assert_array_equal(scene.near.bytes, scene.held)

    def test_threads_that_read_and_write_do_not_meet(self, rig: Rig, scene: Scene) -> None:
        part, turns = LENGTH // 64, 16
        data = pattern(LENGTH, 8)
        scene.near.bytes[:] = data
        failures: list[Exception] = []

        def work(first: int) -> None:
            try:
                for n in range(first, first + turns):
                    rows = scene.rows((n * part, n * part, part))
                    move(rig.engine, rig.peer, rows, "write" if n % 2 else "read").raise_if_failed()
            except (KVFerryError, AssertionError) as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n * turns,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        parts = scene.held.reshape(64, part)
        parts[1::2] = data.reshape(64, part)[1::2]
        np.testing.assert_array_equal(scene.near.bytes, scene.held)
        assert scene.far.digest(0, LENGTH) == _digest(scene.held)

    def test_one_plan_may_be_under_way_several_times(self, rig: Rig, scene: Scene) -> None:
        plan = rig.engine.prepare(rig.peer, scene.rows((0, 0, LENGTH)), "read")
        for _round in range(3):
            transfers = [rig.engine.submit(plan) for _ in range(8)]
            assert all(transfer.wait() for transfer in transfers)
            assert {transfer.error for transfer in transfers} == {None}
            np.testing.assert_array_equal(scene.near.bytes, scene.held)
            scene.near.bytes[:] = 0

    @pytest.mark.parametrize("size", [0, 1, 4096, (1 << 20) + 1, LENGTH])
    def test_execute_moves_what_submit_and_wait_do(self, rig: Rig, scene: Scene, size: int) -> None:
        near = scene.near.bytes
        for _round in range(3):
            near[:] = 0xEE
            transfer = rig.engine.execute(rig.engine.prepare(rig.peer, scene.rows((0, 0, size)), "read"))
            assert transfer.settled
            assert transfer.error is None
            np.testing.assert_array_equal(near[:size], scene.held[:size])
            assert (near[size:] == 0xEE).all()
        near[:size] = pattern(size, 23)
        plan = rig.engine.prepare(rig.peer, scene.rows((0, 0, size)), "write")
        assert rig.engine.execute(plan).error is None
        assert scene.far.digest(0, size) == _digest(pattern(size, 23))

    def test_execute_returns_settled_at_its_deadline(self, rig: Rig, scene: Scene) -> None:
        plan = rig.engine.prepare(rig.peer, scene.rows((0, 0, LENGTH)), "read")
        transfer = rig.engine.execute(plan, timeout_s=0.0)
        assert transfer.settled
        assert transfer.error is None or isinstance(transfer.error, DeadlineExceededError)
        assert rig.engine.execute(plan).error is None

    def test_threads_that_execute_do_not_meet(self, rig: Rig, scene: Scene) -> None:
        part = LENGTH // 4
        plans = [
            rig.engine.prepare(rig.peer, scene.rows((n * part, n * part, part)), "read") for n in range(4)
        ]
        errors: list[KVFerryError | None] = []
        threads = [
            threading.Thread(target=lambda plan=plan: errors.append(rig.engine.execute(plan).error))
            for plan in plans
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [None] * 4
        np.testing.assert_array_equal(scene.near.bytes, scene.held)

    def test_urgent_transfers_settle_before_those_that_can_wait(self, rig: Rig, scene: Scene) -> None:
        big = rig.engine.prepare(rig.peer, scene.rows((0, 0, LENGTH)), "read")
        small = rig.engine.prepare(rig.peer, scene.rows((0, 0, 4096)), "read")
        overtook, chances = False, 0
        for _ in range(20):
            started = time.monotonic()  # not after any that can wait
            waiting = [rig.engine.submit(big, priority="low") for _ in range(64)]
            urgent = rig.engine.submit(small, priority="high")
            usual = rig.engine.submit(small)
            submitted = time.monotonic()  # not before these two
            assert all(transfer.wait() for transfer in (*waiting, urgent, usual))
            assert {transfer.error for transfer in (*waiting, urgent, usual)} == {None}
            last = started + max(transfer.seconds for transfer in waiting)
            chances += submitted < last  # else we were held up until none was left to be overtaken
            overtook = submitted + max(urgent.seconds, usual.seconds) < last
            if (
                overtook or chances == 3
            ):  # the machine may hold up an urgent one, too, but not time after time
                break
        assert overtook, (
            f"urgent transfers had {chances} chances to settle before the last of those that can wait"
        )
        np.testing.assert_array_equal(scene.near.bytes, scene.held)

    async def test_transfers_can_be_awaited(self, rig: Rig, scene: Scene) -> None:
        part = LENGTH // 8
        plans = [
            rig.engine.prepare(rig.peer, scene.rows((n * part, n * part, part)), "read") for n in range(8)
        ]
        await asyncio.wait_for(asyncio.gather(*(rig.engine.submit(plan) for plan in plans)), 30.0)
        np.testing.assert_array_equal(scene.near.bytes, scene.held)

    # The other end dies.

    def test_a_restarted_owner_is_another_one(self) -> None:
        with self.make_rig() as rig:
            if not isinstance(rig, ProcessRig):
                pytest.skip("its far end is no process that could restart")
            near, far = rig.near(LENGTH), rig.far("first", LENGTH, seed=1)
            rows = Scene(near, far, near.bytes).rows((0, 0, LENGTH))
            plan = rig.engine.prepare(rig.peer, rows, "read")
            under_way = [rig.engine.submit(plan) for _ in range(4)]
            old = rig.restart()
            assert all(transfer.wait(30.0) for transfer in under_way)
            for transfer in under_way:
                assert transfer.error is None or isinstance(transfer.error, PeerLostError)
            wait_until(lambda: not old.alive, what="loss of the old peer")
            near.bytes[:] = 0
            far = rig.far("second", LENGTH, seed=2)
            with pytest.raises(KVFerryError):
                move_plan(rig, plan)
            assert not near.bytes.any(), "an old plan brought bytes of the new process"
            rows = Scene(near, far, near.bytes).rows((0, 0, LENGTH))
            assert move(rig.engine, rig.peer, rows).error is None
            np.testing.assert_array_equal(near.bytes, pattern(LENGTH, 2))


def move_plan(rig: Rig, plan: Any) -> None:
    """Run a prepared plan to its end; raises what it failed with."""
    transfer = rig.engine.submit(plan)
    assert transfer.wait()
    transfer.raise_if_failed()

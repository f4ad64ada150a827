from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from _handoff import BLOCK_BYTES, LAYERS, Clock, Decode, Prefill
from kvferry.errors import (
    CancelledError,
    DataCorruptError,
    DeadlineExceededError,
    GeometryMismatchError,
    KVFerryError,
    OutOfRangeError,
    PeerLostError,
    StaleError,
    UnavailableError,
)
from kvferry.handoff import LeaseAddress, LeaseTable, MessageLoop, RemotePrefill
from kvferry.handoff.messages import Release, Released, encode_message
from kvferry.testing import FakeNetwork
from kvferry.testing.fake_engine import FakeMessage, FakePeer


@pytest.fixture
def world():
    clock = Clock()
    network = FakeNetwork(clock=clock)
    return network, clock, Prefill(network, clock), Decode(network, clock)


def test_load_copies_the_blocks_and_frees_the_lease(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3, 1, 2))
    result = decode.load("d1", remote, (7, 5, 6))
    assert result.error is None
    assert result.bytes == 3 * LAYERS * BLOCK_BYTES
    assert (result.transport, result.peer) == ("fake", prefill.engine.endpoint)
    assert decode.memory.values((7, 5, 6)) == prefill.memory.values((3, 1, 2))
    assert prefill.table.take_ended() == {"p1"}
    assert prefill.table.take_counts() == {"granted": 1, "done": 1}
    assert decode.consumer.take_results() == []


def test_local_prefix_hit_reads_only_the_tail(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3, 1, 2))
    result = decode.load("d1", remote, (9,), first_block=2)
    assert result.bytes == LAYERS * BLOCK_BYTES
    assert decode.memory.values((9,)) == prefill.memory.values((2,))


def test_release_may_overtake_the_lease(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3,), admitted=False)
    assert decode.load("d1", remote, (7,)).error is None
    assert prefill.table.take_ended() == set()
    prefill.admit(remote.address.lease, "p1")
    assert prefill.table.take_ended() == {"p1"}


def test_lease_that_ended_makes_the_load_void(world):
    _, clock, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    clock.now += prefill.lease_s + 1
    prefill.table.expire()
    result = decode.load("d1", remote, (7,))
    assert isinstance(result.error, StaleError)
    assert result.bytes == 0
    assert remote.address.lease in str(result.error)


def test_failed_transfer_is_a_failed_load_and_frees_the_lease(world):
    network, _, prefill, decode = world

    def corrupt(transfer):
        raise DataCorruptError("checksum of piece 0 is wrong")

    network.before_transfer = corrupt
    result = decode.load("d1", prefill.finish("p1", (3,)), (7,))
    assert isinstance(result.error, DataCorruptError)
    decode.chores.run()
    assert prefill.table.take_ended() == {"p1"}
    assert prefill.table.take_counts()["aborted"] == 1


def test_dead_peer_backs_off_and_the_next_load_fails_at_once(world):
    network, clock, prefill, decode = world
    decode.load("d0", prefill.finish("p0", (1,)), (1,))
    first, second = prefill.finish("p1", (3,)), prefill.finish("p2", (4,))
    network.before_transfer = lambda transfer: prefill.engine.close()
    assert isinstance(decode.load("d1", first, (7,)).error, PeerLostError)
    connects = []
    decode.engine.connect = lambda *args, **kwargs: connects.append(args) or pytest.fail("in back-off")
    result = decode.load("d2", second, (8,))
    assert isinstance(result.error, UnavailableError)
    assert "next try" in str(result.error)
    assert connects == []
    del decode.engine.connect
    clock.now += 1
    assert "refused" in str(decode.load("d3", second, (8,)).error)


def test_unreachable_peer_backs_off_longer_each_time(world):
    _, clock, prefill, decode = world
    prefill.engine.close()
    remote = prefill.finish("p1", (3,))
    waits = []
    for attempt in range(7):
        decode.load(f"d{attempt}", remote, (7,))
        waits.append(
            float(str(decode.load(f"e{attempt}", remote, (7,)).error).split("within ")[1].split()[0])
        )
        clock.now += 11
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_restarted_peer_at_the_same_address_is_another_peer(world):
    network, clock, prefill, decode = world
    assert decode.load("d0", prefill.finish("p0", (1,)), (1,)).error is None
    old = prefill.finish("p1", (3,))
    prefill.engine.close()
    again = Prefill(network, clock, endpoint=prefill.engine.endpoint)
    stale = decode.load("d1", old, (7,))
    assert "is held by node" in str(stale.error)
    assert decode.load("d2", again.finish("p2", (4,)), (8,)).error is None


def test_suspended_peer_times_out_and_is_left_alone(world):
    _, _, prefill, decode = world
    decode.load("d0", prefill.finish("p0", (1,)), (1,))
    remotes = [prefill.finish(f"p{i}", (i,)) for i in range(1, 4)]
    prefill.engine.stopped = True
    first = decode.load("d1", remotes[0], (7,))
    assert isinstance(first.error, DeadlineExceededError)
    assert "did not confirm" in str(first.error)
    second = decode.load("d2", remotes[1], (8,))
    assert isinstance(second.error, UnavailableError)


def test_a_busy_peer_is_waited_for_as_long_as_its_engine_answers(world, monkeypatch):
    """Its interpreter has no time to answer; its transfer engine, which needs none, does."""
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    delayed: list[FakeMessage] = []
    asked: list[float] = []

    def refresh(self, timeout_s: float) -> None:
        asked.append(timeout_s)
        if len(asked) == 3:
            prefill.loop.dispatch(delayed.pop())

    prefill.engine.on_message = delayed.append
    monkeypatch.setattr(FakePeer, "refresh", refresh)
    assert decode.load("d1", remote, (7,)).error is None
    assert len(asked) == 3
    assert prefill.table.take_ended() == {"p1"}


def test_a_peer_that_never_answers_is_given_up_at_the_end_of_the_load(world):
    network, clock, prefill, _ = world
    decode = Decode(network, clock, load_timeout_s=12.0)
    remotes = [prefill.finish("p1", (3,)), prefill.finish("p2", (4,))]
    prefill.engine.on_message = [].append
    result = decode.load("d1", remotes[0], (7,))
    assert isinstance(result.error, DeadlineExceededError)
    assert "did not confirm" in str(result.error)
    assert result.seconds > 12.0 - 5.0
    assert isinstance(
        decode.load("d2", remotes[1], (8,)).error, UnavailableError
    )  # the next ones do not wait


class NoRoom:
    """An engine whose peer does not read for the first few answers."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.sent: list[int] = []

    def send(self, peer: int, body: bytes, timeout_s: float) -> None:
        if peer == 1 and self.times > 0:
            self.times -= 1
            raise DeadlineExceededError("no room")
        if peer == 3:
            raise PeerLostError("gone")
        self.sent.append(peer)


def release(peer: int) -> FakeMessage:
    return FakeMessage(peer, encode_message(Release("0" * 16 + ".1." + "0" * 32, 7, "done")))


def test_answers_that_find_no_room_are_sent_again():
    engine = NoRoom(times=3)
    loop = MessageLoop(engine, table=LeaseTable(30.0))
    for peer in (1, 2, 3):
        loop.dispatch(release(peer))
    assert engine.sent == [2]
    loop._periodic()
    assert engine.sent == [2]
    loop._periodic()
    loop._periodic()
    assert engine.sent == [2, 1]
    assert loop.take_counts() == {"unanswered": 1}


def test_who_does_not_read_takes_one_try_from_the_others():
    engine = NoRoom(times=1000)
    loop = MessageLoop(engine, table=LeaseTable(30.0))
    for peer in (1, 1, 1, 2):
        loop.dispatch(release(peer))
    assert engine.sent == [2]
    assert engine.times == 1000 - 1
    loop._periodic()
    assert engine.times == 1000 - 2
    engine.times = 0
    loop._periodic()
    assert engine.sent == [2, 1, 1, 1]


def test_answers_to_who_never_reads_are_given_up(monkeypatch):
    monkeypatch.setattr("kvferry.handoff.service.ANSWER_S", -1.0)
    engine = NoRoom(times=1000)
    loop = MessageLoop(engine, table=LeaseTable(30.0))
    loop.dispatch(release(1))
    loop._periodic()
    assert loop.take_counts() == {"unanswered": 1}
    loop._periodic()
    assert engine.times == 1000 - 2


def test_geometry_is_checked_once_and_the_lease_given_back(world, caplog):
    network, clock, _, decode = world
    other = Prefill(network, clock, dtype="bfloat16")
    with caplog.at_level(logging.ERROR):
        for attempt in range(3):
            result = decode.load(f"d{attempt}", other.finish(f"p{attempt}", (3,)), (7,))
            assert isinstance(result.error, GeometryMismatchError)
            assert "dtype: ours float32, theirs bfloat16" in str(result.error)
    decode.chores.run()
    assert other.table.take_ended() == {"p0", "p1", "p2"}
    assert len([record for record in caplog.records if "cannot be used" in record.message]) == 1


def test_metadata_that_is_no_geometry(world):
    network, clock, _, decode = world
    other = Prefill(network, clock)
    other.engine.set_metadata(b"\xff\x00garbage")
    assert "not a KV geometry" in str(decode.load("d1", other.finish("p1", (3,)), (7,)).error)


def test_ranks_that_are_not_what_the_request_says(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    two = LeaseAddress(
        remote.address.lease, remote.address.node_ids * 2, remote.address.endpoints * 2, lease_s=30.0
    )
    result = decode.load("d1", RemotePrefill(two, remote.block_ids, remote.num_tokens), (7,))
    assert isinstance(result.error, GeometryMismatchError)
    assert "tp_size: the request says 2" in str(result.error)
    decode.chores.run()
    assert prefill.table.take_ended() == {"p1"}


def test_block_id_that_a_client_made_up(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    forged = RemotePrefill(remote.address, ((1 << 30,),), remote.num_tokens)
    assert isinstance(decode.load("d1", forged, (7,)).error, OutOfRangeError)


def test_addresses_off_this_host_are_not_dialled_without_a_secret(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    away = LeaseAddress(remote.address.lease, remote.address.node_ids, ("10.0.0.1:80",))
    result = decode.load("d1", RemotePrefill(away, remote.block_ids, remote.num_tokens), (7,))
    assert "transfer.cluster_secret" in str(result.error)


def test_cancel_while_queued(world):
    _, _, prefill, decode = world
    decode.submit("d1", prefill.finish("p1", (3,)), (7,))
    decode.consumer.cancel("d1")
    (result,) = decode.consumer.take_results()
    assert result.cancelled
    decode.loads.run()
    decode.chores.run()
    assert decode.consumer.take_results() == []
    assert prefill.table.take_ended() == {"p1"}
    assert prefill.table.take_counts()["aborted"] == 1


def test_cancel_while_reading(world):
    network, _, prefill, decode = world

    def abort(transfer):
        decode.consumer.cancel("d1")
        transfer.cancel()

    network.before_transfer = abort
    result = decode.load("d1", prefill.finish("p1", (3,)), (7,))
    assert result.cancelled
    decode.chores.run()
    assert prefill.table.take_ended() == {"p1"}


def test_cancel_of_unknown_or_ended_loads_is_nothing(world):
    _, _, prefill, decode = world
    decode.consumer.cancel("never heard of")
    decode.load("d1", prefill.finish("p1", (3,)), (7,))
    decode.consumer.cancel("d1")
    assert decode.consumer.take_results() == []


def test_same_request_twice_is_counted_and_run_once(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    decode.submit("d1", remote, (7,))
    decode.submit("d1", remote, (7,))
    decode.loads.run()
    assert [result.request_id for result in decode.consumer.take_results()] == ["d1"]
    assert decode.consumer.take_counts()["duplicate_loads"] == 1


def test_queued_load_fails_at_its_deadline(world):
    _, clock, prefill, decode = world
    decode.submit("d1", prefill.finish("p1", (3,)), (7,))
    clock.now += 29
    decode.consumer.tick()
    assert decode.consumer.take_results() == []
    clock.now += 2
    decode.consumer.tick()
    (result,) = decode.consumer.take_results()
    assert isinstance(result.error, DeadlineExceededError)
    assert "handoff.load_timeout_s" in str(result.error)


def test_bug_in_a_load_is_a_failed_load(world, caplog):
    _, _, prefill, decode = world
    decode.engine.prepare = lambda *args, **kwargs: 1 / 0
    result = decode.load("d1", prefill.finish("p1", (3,)), (7,))
    assert "ZeroDivisionError" in str(result.error)
    assert decode.consumer.pending() == 0


def test_renewals_keep_waiting_and_queued_requests_alive(world):
    _, clock, prefill, decode = world
    waiting, queued = prefill.finish("p1", (3,)), prefill.finish("p2", (4,))
    decode.consumer.watch("d1", waiting.address)
    decode.submit("d2", queued, (8,))
    for _ in range(20):
        clock.now += 5
        decode.consumer.tick()
        decode.chores.run()
        prefill.table.expire()
        decode.consumer.take_results()
        if clock.now < 1020:
            assert prefill.table.held() == 2
    assert prefill.table.held() == 1  # the queued load ended by its own deadline, the waiting one still waits
    decode.consumer.release("d1", waiting.address, "rejected")
    decode.chores.run()
    assert prefill.table.held() == 0
    assert prefill.table.take_counts()["rejected"] == 1


def test_renewals_stop_when_the_load_ends(world):
    _, clock, prefill, decode = world
    decode.load("d1", prefill.finish("p1", (3,)), (7,))
    clock.now += 100
    decode.consumer.tick()
    decode.chores.run()
    assert "stale_renewals" not in prefill.table.take_counts()


def test_late_duplicate_and_forged_answers_are_counted_and_ignored(world):
    _, _, prefill, decode = world
    decode.load("d1", prefill.finish("p1", (3,)), (7,))
    decode.control.on_released(1, Released(1, True))
    decode.control.on_released(99, Released(12345, True))
    assert decode.control.take_counts() == {"late_answers": 2}


def test_answer_of_another_peer_does_not_count(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    prefill.table.release(remote.address.lease, "aborted")
    decode.load("d0", prefill.finish("p0", (1,)), (1,))
    real_send = decode.engine.send

    def send(peer, body, timeout_s=5.0):
        decode.control.on_released(4711, Released(2, True))
        real_send(peer, body, timeout_s)

    decode.engine.send = send
    assert isinstance(decode.load("d1", remote, (7,)).error, StaleError)


def test_close_cancels_everything_and_refuses_new_loads(world):
    _, _, prefill, decode = world
    decode.submit("d1", prefill.finish("p1", (3,)), (7,))
    decode.consumer.close()
    decode.submit("d2", prefill.finish("p2", (4,)), (8,))
    results = decode.consumer.take_results()
    assert [(result.request_id, type(result.error)) for result in results] == [
        ("d1", CancelledError),
        ("d2", CancelledError),
    ]


def test_transfer_cancelled_at_its_deadline_is_a_failed_load_not_a_cancelled_one(world):
    network, _, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    network.hold = True
    real_submit = decode.engine.submit

    def submit(plan, timeout_s=None, notify=b""):
        transfer = real_submit(plan, timeout_s, notify)
        transfer.wait = lambda timeout_s=None: transfer.settled
        return transfer

    decode.engine.submit = submit
    result = decode.load("d1", remote, (7,))
    assert isinstance(result.error, DeadlineExceededError)
    assert not result.cancelled


def test_peer_that_does_not_answer_a_release_is_left_alone(world):
    _, _, prefill, decode = world
    decode.load("d0", prefill.finish("p0", (1,)), (1,))
    unused, wanted = prefill.finish("p1", (3,)), prefill.finish("p2", (4,))
    prefill.engine.stopped = True
    decode.consumer.release("d1", unused.address, "rejected")
    decode.chores.run()
    assert isinstance(decode.load("d2", wanted, (8,)).error, UnavailableError)
    assert decode.consumer.take_counts()["release_failures"] == 1


def test_broken_rail_of_a_living_peer_gives_the_lease_back_and_keeps_the_connection(world):
    network, _, prefill, decode = world

    def broken(transfer):
        raise PeerLostError("the rail broke")

    network.before_transfer = broken
    assert isinstance(decode.load("d1", prefill.finish("p1", (3,)), (7,)).error, PeerLostError)
    decode.chores.run()
    assert prefill.table.take_ended() == {"p1"}
    network.before_transfer = None
    assert decode.load("d2", prefill.finish("p2", (4,)), (8,)).error is None
    assert len(decode.engine.peers()) == 1


def test_a_bug_after_a_failed_load_does_not_keep_its_result(world):
    _, _, prefill, decode = world
    decode.load("d0", prefill.finish("p0", (1,)), (1,))
    remote = prefill.finish("p1", (3,))
    prefill.engine.stopped = True

    def broken(node_id, endpoint, error):
        raise RuntimeError("a bug")

    decode.peers.report_failure = broken
    decode.submit("d1", remote, (7,))
    with pytest.raises(RuntimeError, match="a bug"):
        decode.loads.run()
    (result,) = decode.consumer.take_results()
    assert (result.request_id, type(result.error)) == ("d1", DeadlineExceededError)
    assert decode.consumer.pending() == 0


def test_the_peer_just_asked_for_is_not_the_one_forgotten(world, monkeypatch):
    network, clock, first, decode = world
    monkeypatch.setattr("kvferry.handoff.peers.MAX_PEERS", 2)
    others = [first, Prefill(network, clock), Prefill(network, clock)]
    targets = [(one.engine.node_id, one.engine.endpoint) for one in others]
    for target in targets:
        decode.peers.get(*target, timeout_s=5.0)
    assert [decode.peers.connected(*target) is not None for target in targets] == [False, True, True]
    assert len([peer for peer in decode.engine.peers() if peer.alive]) == 2


@pytest.mark.parametrize("fault", ["geometry", "down"])
def test_a_refusal_does_not_collect_those_it_refused(world, fault):
    network, clock, prefill, decode = world
    if fault == "geometry":
        prefill = Prefill(network, clock, model="another")
    else:
        prefill.engine.close()

    def depth() -> int:
        with pytest.raises(KVFerryError) as caught:
            decode.peers.get(prefill.engine.node_id, prefill.engine.endpoint, timeout_s=5.0)
        return len(caught.traceback)

    depth()  # the first one connects
    assert len({depth() for _ in range(3)}) == 1


def test_blocks_that_were_not_leased_are_not_loaded(world):
    _, _, prefill, decode = world
    remote = prefill.finish("p1", (3,))
    prefill.finish("p2", (4,))
    forged = replace(remote, block_ids=((4,),))
    assert isinstance(decode.load("d1", forged, (7,)).error, StaleError)
    assert decode.load("d2", remote, (7,)).error is None

"""Prefill and decode engines of unequal numbers of ranks, over fake transfer engines."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from _handoff import Clock, StepExecutor
from _ranks import UNTOUCHED, Engine, Setup, Shape
from kvferry.errors import GeometryMismatchError, PeerLostError, StaleError
from kvferry.handoff import (
    Consumer,
    ConsumerLimits,
    ControlClient,
    LeaseAddress,
    LeaseIssuer,
    LeaseTable,
    LoadRequest,
    MessageLoop,
    PeerBook,
    RemotePrefill,
    content_digest,
)
from kvferry.testing import FakeNetwork

TOKENS = 96
MODEL = (Shape("full", 4, 4), Shape("slide", 2, 2, "window", window=32))
SETUPS = [(1, 2), (2, 1), (2, 4), (4, 2), (8, 1), (1, 8)]
STAGES = [((0,), (0,)), ((0, 2), (0,)), ((0,), (0, 2)), ((0, 1), (0, 3))]


class Side:
    """All ranks of one engine, each with a transfer engine, a lease table and a consumer."""

    def __init__(self, network: FakeNetwork, clock: Clock, setup: Setup) -> None:
        self.setup = setup
        self.cache = Engine(MODEL, setup)
        self.issuer = LeaseIssuer()
        self.chores = StepExecutor()
        self.engines, self.tables, self.consumers = [], [], []
        for rank in self.cache.ranks:
            engine = network.engine(rank.geometry.encode())
            regions = {name: engine.register(flat, name=name).id for name, flat in rank.memory.items()}
            control, table = ControlClient(engine), LeaseTable(30.0, clock=clock)
            table.admit(self.issuer.authority, 0, [])
            peers = PeerBook(engine, rank.geometry, allow_remote=False, connect_timeout_s=5.0, clock=clock)
            consumer = Consumer(
                engine, rank.geometry, regions, peers, control, loads=StepExecutor(inline=True),
                chores=self.chores, limits=ConsumerLimits(30.0, 5.0), clock=clock,
            )  # fmt: skip
            engine.on_message = MessageLoop(engine, table=table, control=control).dispatch
            self.engines.append(engine)
            self.tables.append(table)
            self.consumers.append(consumer)

    def prefill(self, blocks: list[np.ndarray]) -> RemotePrefill:
        self.cache.write(blocks, TOKENS)
        ids = tuple(tuple(int(one) for one in each) for each in blocks)
        lease = self.issuer.issue(content_digest(ids, TOKENS, ""))
        for table in self.tables:
            table.admit(self.issuer.authority, self.issuer.issued_through, [(lease, "p1")])
        address = LeaseAddress(
            lease,
            tuple(engine.node_id for engine in self.engines),
            tuple(engine.endpoint for engine in self.engines),
            pp_size=self.setup.pp,
        )
        return RemotePrefill(address, ids, TOKENS)

    def load(self, remote: RemotePrefill, blocks: list[np.ndarray], ranks: slice = slice(None)) -> list:
        local = tuple(tuple(int(one) for one in each) for each in blocks)
        results = []
        for consumer in self.consumers[ranks]:
            consumer.submit(LoadRequest("d1", remote, local, 0, TOKENS))
            results += consumer.take_results()
        return results

    def ended(self) -> list[bool]:
        return [bool(table.take_ended()) for table in self.tables]


def blocks_of(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    full, window = rng.permutation(np.arange(1, 13)).reshape(2, 6)
    window[:3] = 0
    return [full, window]


@pytest.fixture
def world():
    clock = Clock()
    network = FakeNetwork(clock=clock)
    return lambda setup: Side(network, clock, setup), network, clock


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(("prefill_tp", "decode_tp"), SETUPS)
def test_every_rank_reads_what_it_needs_and_each_lease_ends_once_with_its_last_reader(
    world, prefill_tp, decode_tp, stages
):
    make, _, _ = world
    prefill = make(Setup(prefill_tp, stages[0], form="LBHNC"))
    decode = make(Setup(decode_tp, stages[1], form="LBNHC"))
    remote, near = prefill.prefill(blocks_of(1)), blocks_of(2)
    early = decode.load(remote, near, slice(0, -1))
    decode.chores.run()
    ended = prefill.ended()
    last = decode.load(remote, near, slice(-1, None))
    decode.chores.run()
    assert [result.error for result in early + last] == [None] * len(decode.consumers)
    for rank, name, where, values in decode.cache.cells(near, TOKENS):
        np.testing.assert_array_equal(decode.cache.read(rank, name, where), values, err_msg=name)
    assert [a != b for a, b in zip(ended, prefill.ended(), strict=True)] == [True] * len(prefill.tables)
    for table in prefill.tables:
        counts = table.take_counts()
        assert counts["granted"] == counts["done"] == 1
        assert not any(count for name, count in counts.items() if name.endswith("_notices"))


def test_a_lease_is_held_while_one_reader_is_left(world):
    make, _, _ = world
    prefill, decode = make(Setup(1)), make(Setup(2))
    remote = prefill.prefill(blocks_of(1))
    decode.load(remote, blocks_of(2), slice(0, 1))
    assert prefill.tables[0].held() == 1
    decode.consumers[1].release("d1", remote.address, "aborted")
    decode.chores.run()
    assert prefill.ended() == [True]


def test_readers_that_are_faster_than_the_engine_are_remembered(world):
    make, _, _ = world
    prefill, decode = make(Setup(1)), make(Setup(2))
    held = LeaseTable(30.0)
    held.admit(prefill.issuer.authority, 0, [])
    lease = prefill.issuer.issue()
    assert held.release(lease, "done", reader=1, readers=2)
    assert not held.release(lease, "done", reader=1, readers=2)
    held.admit(prefill.issuer.authority, 1, [(lease, "p1")])
    assert held.take_ended() == set()
    assert held.release(lease, "done", reader=0, readers=2)
    assert held.take_ended() == {"p1"}
    assert decode.setup.tp == 2


def test_a_router_ends_a_lease_for_all_readers(world):
    make, _, _ = world
    prefill = make(Setup(1))
    remote = prefill.prefill(blocks_of(1))
    table = prefill.tables[0]
    assert table.release(remote.address.lease, "done", reader=0, readers=2)
    assert table.release(remote.address.lease, "aborted")
    assert table.take_ended() == {"p1"}


def test_one_lost_rank_fails_the_load_and_the_others_are_told(world):
    make, network, clock = world
    prefill, decode = make(Setup(2)), make(Setup(1))
    decode.load(prefill.prefill(blocks_of(1)), blocks_of(2))
    decode.chores.run()
    prefill.ended()
    remote = prefill.prefill(blocks_of(1))
    network.before_transfer = lambda transfer: prefill.engines[1].close()
    (result,) = decode.load(remote, blocks_of(2))
    assert isinstance(result.error, PeerLostError)
    assert result.bytes == 0
    network.before_transfer = None
    decode.chores.run()
    assert prefill.tables[0].take_ended() == {"p1"}
    assert clock.now < 1030


def test_a_lease_that_one_rank_gave_up_makes_the_load_void(world):
    make, _, _ = world
    prefill, decode = make(Setup(2)), make(Setup(1))
    remote = prefill.prefill(blocks_of(1))
    prefill.tables[1].release(remote.address.lease, "aborted")
    (result,) = decode.load(remote, blocks_of(2))
    assert isinstance(result.error, StaleError)


def test_a_lease_for_other_blocks_is_left_to_its_rightful_reader(world):
    make, _, _ = world
    prefill, decode = make(Setup(2)), make(Setup(1))
    remote = prefill.prefill(blocks_of(1))
    wrong = replace(remote, block_ids=tuple(ids[::-1] for ids in remote.block_ids))
    taken = [np.arange(6, 0, -1), np.where(np.arange(6) < 3, np.arange(7, 13), 0)]
    (result,) = decode.load(wrong, taken)
    assert isinstance(result.error, StaleError)
    decode.chores.run()
    assert prefill.ended() == [False, False]
    assert decode.load(remote, blocks_of(2))[0].error is None


@pytest.mark.parametrize(
    ("ranks", "stages", "sentence"),
    [
        ((0,), 1, "tp_size: the request says 1 .* which says 2"),
        ((1, 0), 1, "tp_rank: the request says 0 .* which says 1"),
        ((0, 1), 2, "tp_size: the request says 1 .* which says 2"),
    ],
)
def test_ranks_in_other_places_than_the_request_says_are_not_read(world, ranks, stages, sentence):
    """The addresses come with a user's request: a wrong one must not leave heads unread."""
    make, _, _ = world
    prefill, decode = make(Setup(2)), make(Setup(1))
    remote = prefill.prefill(blocks_of(1))
    address = replace(
        remote.address,
        node_ids=tuple(remote.address.node_ids[rank] for rank in ranks),
        endpoints=tuple(remote.address.endpoints[rank] for rank in ranks),
        pp_size=stages,
    )
    (result,) = decode.load(replace(remote, address=address), blocks_of(2))
    assert isinstance(result.error, GeometryMismatchError)
    with pytest.raises(GeometryMismatchError, match=sentence):
        raise result.error
    assert all((flat == UNTOUCHED).all() for flat in decode.cache.ranks[0].memory.values())


def test_leases_are_renewed_at_every_rank(world):
    make, _, clock = world
    prefill, decode = make(Setup(4)), make(Setup(2))
    remote = prefill.prefill(blocks_of(1))
    for consumer in decode.consumers:
        consumer.watch("d1", remote.address)
    for _ in range(10):
        clock.now += 7
        for consumer in decode.consumers:
            consumer.tick()
        decode.chores.run()
        for table in prefill.tables:
            table.expire()
    assert [table.held() for table in prefill.tables] == [1, 1, 1, 1]


def test_two_data_parallel_ranks_are_two_engines(world):
    """Each has an engine id and addresses of its own: what one has leased, the other knows nothing of."""
    make, _, _ = world
    first, second, decode = make(Setup(2)), make(Setup(2)), make(Setup(1))
    remote = second.prefill(blocks_of(1))
    (result,) = decode.load(remote, blocks_of(2))
    assert result.error is None
    assert result.peer in {engine.endpoint for engine in second.engines}
    assert second.ended() == [True, True]
    assert [table.take_counts() for table in first.tables] == [{}, {}]

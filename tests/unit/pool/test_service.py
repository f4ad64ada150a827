from __future__ import annotations

import itertools

import pytest

from _pool import BLOCK, Memory, hashes, keys, value
from kvferry.config import load_config
from kvferry.errors import ConfigError, KVFerryError, UnauthenticatedError, UnavailableError
from kvferry.pool import PoolBack, PoolFront, StoreLink, open_link
from kvferry.store import open_embedded, open_store
from kvferry.testing.fake_store import FakeStore
from kvferry.testing.waiting import wait_until

HASHES = hashes(range(20))


def settings(tmp_path, **pool):
    pool = {"lookup_timeout_s": 30, **pool}  # a slow machine's answer counts, too
    values = {"cluster": {"directory": str(tmp_path)}, "store": {"dram": 32 << 20}, "pool": pool}
    return load_config(values, environ={})


class Engine:
    """Both sides, and the engine's part: five blocks of one request."""

    def __init__(self, config) -> None:
        self.memory = Memory(16)
        self.front = PoolFront(config, keys())
        self.back = PoolBack(config, [self.memory.group], self.memory.layers, rank=0)
        self.held: list[int] = []
        self.front.scheduler.bind(self.held.extend, lambda ids: self.held.clear(), max_held=16)

    def close(self) -> None:
        self.back.close()
        self.front.close()

    def matched(self, name: str) -> int:
        self.front.scheduler.arrived(name, HASHES)
        answers: list[int | None] = []
        wait_until(
            lambda: answers.append(self.front.scheduler.matched(name, HASHES)) or answers[-1] is not None, 30
        )
        assert answers[-1] is not None
        return answers[-1]

    def save(self, name: str) -> None:
        for block, each in enumerate(HASHES, start=1):
            self.memory.write(block, each)
        self.front.scheduler.computed(name, HASHES, 20, lambda: [[1, 2, 3, 4, 5]])
        self.back.worker.start_saves(self.front.scheduler.take_orders())
        wait_until(self.saved)

    def saved(self) -> bool:
        counts = self.back.worker.take_saved()
        if counts is not None:
            self.front.scheduler.saves_ended(counts.ended)
        return not self.held

    def load(self, name: str, tokens: int):
        self.front.scheduler.load(name, 0, tokens, [[6, 7, 8, 9, 10]])
        self.back.start_loads(self.front.scheduler.take_orders())
        results = []
        wait_until(lambda: results.extend(self.back.worker.take_results()) or bool(results))
        return results[0]


@pytest.fixture
def engine(tmp_path):
    made = Engine(settings(tmp_path))
    yield made
    made.close()
    made.close()


def test_a_node_of_its_own(engine):
    assert engine.matched("a") == 0
    engine.back.start_loads(engine.front.scheduler.take_orders())  # tells the worker where the node is
    engine.save("a")
    assert engine.matched("b") == 5 * BLOCK
    result = engine.load("b", 20)
    assert result.error is None
    assert [engine.memory.read(block) for block in range(6, 11)] == [value(each) for each in HASHES]


def test_forgetting(engine):
    engine.matched("a")
    engine.back.start_loads(engine.front.scheduler.take_orders())
    engine.save("a")
    assert engine.front.forget()
    assert engine.matched("b") == 0
    engine.front.scheduler.computed("a", HASHES, 20, lambda: [[1, 2, 3, 4, 5]])
    assert not engine.front.forget()  # blocks are being saved


def test_no_node_and_none_of_its_own(tmp_path):
    engine = Engine(settings(tmp_path, node="attach"))
    assert engine.matched("a") == 0
    engine.save("a")
    assert engine.back.worker.take_counts()["save_failures|unavailable"] == 1
    assert engine.load("a", 0).error is None
    assert not engine.front.forget()
    engine.close()


class TestLink:
    def test_opened_once_and_closed(self):
        store = FakeStore()
        opened = []
        link = StoreLink(lambda: opened.append(1) or store)
        assert link.get() is link.get() is store
        assert opened == [1]
        link.close()
        link.close()
        assert store.closed
        with pytest.raises(UnavailableError, match="closed"):
            link.get()

    def test_pauses_between_attempts(self, caplog):
        now, attempts = [0.0], []

        def refuse():
            attempts.append(now[0])
            raise UnavailableError("no node")

        link = StoreLink(refuse, clock=lambda: now[0])
        for _ in range(320):
            with pytest.raises(KVFerryError, match="no node"):
                link.get()
            now[0] += 0.125
        gaps = [round(b - a, 1) for a, b in itertools.pairwise(attempts)]
        assert gaps == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) <= 5

    def test_opens_after_a_failure_and_says_what_it_meant(self, caplog):
        now, store, answers = [0.0], FakeStore(), [UnavailableError("no node"), None]

        def open_second_time():
            failure = answers.pop(0)
            if failure is not None:
                raise failure
            return store

        link = StoreLink(open_second_time, consequence="nothing is shared", clock=lambda: now[0])
        for _ in range(5):
            with pytest.raises(UnavailableError, match="no node"):
                link.get()
        assert "nothing is shared: no node" in caplog.text
        now[0] = 1.0
        assert link.get() is store
        assert link.get() is store  # a third opening would fail

    def test_closed_while_it_opens(self):
        store = FakeStore()
        links = []

        def open_slowly():
            links[0].close()
            return store

        links.append(StoreLink(open_slowly))
        with pytest.raises(UnavailableError, match="closed"):
            links[0].get()
        assert store.closed


@pytest.mark.parametrize("way", [open_link, open_store, lambda config: PoolFront(config, keys())])
def test_a_node_that_is_no_address_ends_the_start(tmp_path, way):
    config = load_config({"cluster.directory": str(tmp_path), "store.node": "foo"}, environ={})
    with pytest.raises(ConfigError, match=r"store\.node from argument.*'foo': a port is missing"):
        way(config)


@pytest.mark.parametrize("store", ["etcd://x", "etcd://x:y", "consul://x:1"])
def test_a_cluster_that_no_node_could_have_ends_the_start(tmp_path, store):
    secret = "" if store == "etcd://x" else "a secret of at least 16 bytes"
    config = load_config(
        {"cluster": {"directory": str(tmp_path), "store": store}, "transfer.cluster_secret": secret},
        environ={},
    )
    with pytest.raises(ConfigError, match=r"cluster\.store.*(cluster_secret_file|host:port|is not known)"):
        open_link(config)


def test_a_node_that_refuses_us_is_said_to_be_there(tmp_path):
    secret = "a secret of at least 16 bytes"
    values = {"cluster.directory": str(tmp_path), "store.dram": "8MiB", "pool.node": "own"}
    with open_embedded(load_config({**values, "transfer.cluster_secret": secret}, environ={})) as node:
        theirs = {**values, "pool.node": "attach", "store.node": node.own_endpoint}
        link = open_link(load_config({**theirs, "transfer.cluster_secret": secret[::-1]}, environ={}))
        with pytest.raises(UnauthenticatedError, match=r"^the node at \S+ refused this program: .*secrets"):
            link.get()
        link.close()


def test_an_engine_of_a_cluster_waits_for_a_node_of_it(tmp_path, caplog):
    values = {
        "cluster": {"directory": str(tmp_path), "store": "etcd://127.0.0.1:1"},
        "transfer": {"cluster_secret": "a secret of at least 16 bytes"},
    }

    def not_wanted(_config):
        raise AssertionError("a node was made that the cluster does not know")

    front = PoolFront(load_config(values, environ={}), keys(), open_node=not_wanted)
    try:
        assert "start `kvferry node --cluster etcd://127.0.0.1:1` here" in caplog.text
    finally:
        front.close()

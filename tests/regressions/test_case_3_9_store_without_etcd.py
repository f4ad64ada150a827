"""Case 3.9, the store's side: etcd dies, one member, then all, and comes back; so does a node.

All the while clients put, get and remove, and what they see is checked against the model.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.faults.store.history import Op, Promise, check
from tests.faults.store.processes import CALL_S, PATIENCE_S, ClientProcess
from tests.faults.store.values import content

from kvferry.store import Store
from kvferry.testing.etcd import EtcdCluster
from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until

AWAY, BACK = "going on with the last view", "answers again after"
FAILED = ("unavailable", "deadline_exceeded", "peer_lost", "internal")  # no answers of a store that serves


class Pool(NamedTuple):
    """Nodes in the same etcd, which has three members."""

    etcd: EtcdCluster
    directory: Path
    environ: dict[str, str]
    undo: ExitStack

    def node(self) -> NodeChild:
        return self.undo.enter_context(
            NodeChild(self.directory, "--dram", "32MiB", "--drain", "0", environ=self.environ)
        )

    def client(self, node: NodeChild, name: str) -> ClientProcess:
        client = ClientProcess(node, self.directory / f"{name}.log")
        self.undo.callback(client.kill)
        return client


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the cluster\n", encoding="ascii")
    secret.chmod(0o600)
    with EtcdCluster(tmp_path / "etcd", 3) as etcd, ExitStack() as undo:
        environ = {
            "KVFERRY_CLUSTER_STORE": etcd.address,
            "KVFERRY_CLUSTER_LEASE_S": "3",
            "KVFERRY_STORE_SUSPECT_AFTER_S": "5",  # nobody stands still here, but for want of a processor
            "KVFERRY_TRANSFER_CLUSTER_SECRET_FILE": str(secret),
        }
        yield Pool(etcd, tmp_path, environ, undo)


def knows(store: Store, count: int) -> bool:
    return len(store.members) == count


def all_know(nodes: list[NodeChild]) -> None:
    for node in nodes:
        with node.open() as store:
            wait_until(functools.partial(knows, store, len(nodes)), PATIENCE_S, "all members")


def lines(node: NodeChild, text: str) -> int:
    return sum(text in line for line in node.log().splitlines())


class Load:
    """Clients that put, get and remove; all that they did is checked against the model."""

    def __init__(self, clients: list[ClientProcess]) -> None:
        self._clients = clients
        self.durable = [f"durable/{number}/{20_000 if number % 2 else 100}" for number in range(20)]
        ends = clients[0].ask("each", "put", self.durable)
        assert ends == ["created 1"] * len(self.durable)
        self._laid_down: list[Op] = clients[0].news()

    def begin(self, part: str, seconds: float) -> None:
        """Mixed traffic for some seconds; `judge` ends it."""
        for client in self._clients:
            sizes = enumerate((0, 1, 100, 4096, 70_000))
            other = [f"{part}/{client.name}/{number}/{size}" for number, size in sizes]
            client.say("run", self.durable, other, other[3:], True, seconds, f"39:{part}:{client.name}")

    def judge(self) -> int:
        """None may have failed, or seen anything that the model does not allow. How many there were."""
        ops = list(self._laid_down)
        for client in self._clients:
            client.hear()
            ops += client.news()
        assert check(ops, Promise(frozenset(self.durable), CALL_S)) == []
        racing = ("put", "unavailable")  # it was removed in that moment, to be put again
        assert [op for op in ops if op.outcome in FAILED and (op.op, op.outcome) != racing] == []
        assert any(str(op.outcome).startswith("created") for op in ops[len(self._laid_down) :])
        return len(ops)


def test_nodes_serve_while_etcd_is_away_and_say_so_once(pool: Pool, extent) -> None:
    nodes = [pool.node(), pool.node()]
    all_know(nodes)
    load = Load([pool.client(node, f"client-{number}") for number, node in enumerate(nodes)])
    seconds = extent.times(1, 30)

    pool.etcd.kill(0)
    load.begin("one member is dead", seconds)
    assert load.judge() > 100
    assert [lines(node, AWAY) for node in nodes] == [0, 0]

    pool.etcd.kill()
    load.begin("all are dead", seconds)
    assert load.judge() > 100
    wait_until(lambda: all(lines(node, AWAY) == 1 for node in nodes), PATIENCE_S, "the nodes notice")

    pool.etcd.empty()  # what it knew is lost, too
    load.begin("it comes back", 4 * seconds)
    pool.etcd.start()
    pool.etcd.wait_ready()
    wait_until(lambda: all(lines(node, BACK) == 1 for node in nodes), PATIENCE_S, "the nodes notice")
    load.judge()
    assert [lines(node, AWAY) for node in nodes] == [1, 1]

    nodes.append(pool.node())  # who joins now finds all of them
    all_know(nodes)
    with nodes[-1].open() as store:
        assert [store.get(key) for key in load.durable] == [content(key) for key in load.durable]


def test_a_directory_node_that_restarts_loses_nothing_that_lives(pool: Pool) -> None:
    """It owned a third of the directory; what the others hold is announced to its successor, too."""
    nodes = [pool.node() for _ in range(3)]
    all_know(nodes)
    kept = {number: [f"kept/{number}-{i}/{5000 * (i % 3)}" for i in range(60)] for number in (0, 1)}
    for number, keys in kept.items():
        with nodes[number].open() as store:
            assert all(result.created for result in store.put_many(keys, [content(key) for key in keys]))
    nodes.pop().kill()
    with nodes[0].open() as first, nodes[1].open() as second:
        for _ in range(2):  # at once, and when another one has taken its place
            for number, store in ((0, second), (1, first)):
                targets = [bytearray(len(content(key))) for key in kept[number]]
                results = store.get_many_into(kept[number], targets, timeout_s=20)
                assert [result.error for result in results] == [None] * len(targets)
                assert [bytes(target) for target in targets] == [content(key) for key in kept[number]]
            if len(nodes) == 2:
                nodes.append(pool.node())
                all_know(nodes)
        with nodes[2].open() as store:
            assert all(store.exists_many(keys).all() for keys in kept.values())

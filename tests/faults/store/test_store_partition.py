"""Two nodes that cannot reach each other, in network namespaces: each serves what it has, and nothing wrong.

Membership is in an etcd beside one of them, so that the other one loses that, too.
"""

from __future__ import annotations

import functools
import math
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.faults.store.campaign import RACED_SIZES, agree
from tests.faults.store.history import Op, Promise, check
from tests.faults.store.processes import CALL_S, PATIENCE_S, ClientProcess, Failure

from _netns import Hosts, two_hosts
from kvferry.testing.etcd import EtcdCluster
from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until

CABLE = "cable"
SIZES = (0, 100, 4096, 70_000, 300_000)


class Pair(NamedTuple):
    """A node and a client on each host."""

    hosts: Hosts
    nodes: list[NodeChild]
    clients: list[ClientProcess]

    def news(self) -> list[Op]:
        return [op for client in self.clients for op in client.news()]

    def see(self, count: int) -> None:
        """Wait until the clients know so many members."""
        known: list[int] = []

        def right() -> bool:
            known[:] = [client.ask("members") for client in self.clients]
            return known == [count, count]

        try:
            wait_until(right, PATIENCE_S)
        except AssertionError:
            logs = "\n\n".join(node.log()[-3000:] for node in self.nodes)
            raise Failure(f"the clients know {known} members, not {count}:\n{logs}") from None


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the cluster\n", encoding="ascii")
    secret.chmod(0o600)
    with ExitStack() as undo:
        hosts = undo.enter_context(two_hosts(CABLE))
        address = hosts.near.addresses[0]
        etcd = undo.enter_context(EtcdCluster(tmp_path / "etcd", host=address, prefix=hosts.near.prefix))
        nodes, clients = [], []
        for number, host in enumerate((hosts.near, hosts.far)):
            environ = {
                "KVFERRY_CLUSTER_HOST": f"host-{number}",
                "KVFERRY_CLUSTER_LEASE_S": "3",  # where a slow machine must not make anybody seem dead
                "KVFERRY_CLUSTER_STORE": etcd.address,
                "KVFERRY_STORE_SUSPECT_AFTER_S": "2",
                "KVFERRY_TRANSFER_BIND": f"{host.addresses[0]}:0",
                "KVFERRY_TRANSFER_CLUSTER_SECRET_FILE": str(secret),
            }
            flags = ("--dram", "64MiB", "--drain", "0")
            node = undo.enter_context(NodeChild(tmp_path, *flags, environ=environ, prefix=host.prefix))
            client = ClientProcess(node, tmp_path / f"client-{number}.log")
            undo.callback(client.kill)
            nodes.append(node)
            clients.append(client)
        made = Pair(hosts, nodes, clients)
        made.see(2)
        yield made


def lay_down(pair: Pair, part: str) -> tuple[list[str], list[str]]:
    """Keys that both hosts hold, and keys that only one holds."""
    both = [f"{part}/both-{number}/{SIZES[number % len(SIZES)]}" for number in range(20)]
    alone = [f"{part}/alone-{number}/{SIZES[number % len(SIZES)]}" for number in range(20)]
    near, far = pair.clients
    assert near.ask("each", "put", both, 0, 2) == ["created 2"] * len(both)
    for client, keys in ((near, alone[:10]), (far, alone[10:])):
        assert client.ask("each", "put", keys) == ["created 1"] * len(keys)
    return both, alone


def test_both_sides_of_a_partition_serve_what_they_hold_and_agree_afterwards(pair: Pair, extent) -> None:
    for round_ in range(extent.times(1, 10)):
        both, alone = lay_down(pair, f"round {round_}")
        raced = [f"round {round_}/raced-{number}/{size}" for number, size in enumerate(RACED_SIZES)]
        apart_s = extent.times(3, 15)
        for client in pair.clients:
            client.say("run", both, alone, raced, True, apart_s + 1.0, f"{round_}:{client.name}")
        time.sleep(0.5)
        pair.hosts.pull(CABLE)
        for client in pair.clients:
            client.hear()
        assert any("member_suspected" in node.log() for node in pair.nodes)  # they were apart indeed
        pair.hosts.plug_in(CABLE)
        pair.see(2)
        keys = [*both, *alone, *raced]
        wait_until(functools.partial(agree, pair.clients, keys), PATIENCE_S, "both see the same")
        # What one side removed and the other one put may be there afterwards: both agree on that. That no key
        # comes back from then on is asked for in the long form only.
        healed_at = time.monotonic() if extent.long else math.inf
        for client in pair.clients:
            client.ask("each", "get", keys)
        everybody = frozenset(client.name for client in pair.clients)
        promise = Promise(frozenset(both), CALL_S, one_content=False, cut_off=everybody, healed_at=healed_at)
        ops = pair.news()
        assert check(ops, promise) == []
        assert len(ops) > 200


def make_buffers_small(hosts: Hosts) -> None:
    """So that what is under way fills them. The test is skipped where that may not be set."""
    for name in ("tcp_rmem", "tcp_wmem"):
        setting = f"echo 4096 4096 4096 > /proc/sys/net/ipv4/{name}"
        done = subprocess.run([*hosts.near.prefix, "sh", "-c", setting], stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            pytest.skip(f"{name} of a network namespace cannot be set here: {done.stderr.decode().strip()}")


def test_a_node_that_stops_while_it_reads_a_value_holds_up_its_put_no_longer(tmp_path: Path) -> None:
    """It may be in the middle of the memory, which must not be used any more when the call has ended."""
    with ExitStack() as undo:
        hosts = undo.enter_context(two_hosts(CABLE))
        make_buffers_small(hosts)
        environ = {"KVFERRY_TRANSFER_TRANSPORTS": "tcp"}
        flags = ("--dram", "96MiB", "--drain", "0")
        node = undo.enter_context(NodeChild(tmp_path, *flags, environ=environ, prefix=hosts.near.prefix))
        client = ClientProcess(node, tmp_path / "client.log")
        undo.callback(client.kill)
        key = f"value/{48 << 20}"
        begin = time.monotonic()
        assert client.ask("put", key) == "created 1"
        pause_s = (time.monotonic() - begin) / 2
        for _ in range(12):  # until it is caught in the middle
            assert client.ask("remove", key) == "ok"
            client.news()
            client.say("put", key)
            time.sleep(pause_s)
            node.pause()
            outcome = client.hear()
            node.resume()
            if outcome != "created 1":
                break
            pause_s *= 0.7
        [put] = client.news()
        assert put.outcome == "deadline_exceeded"
        assert put.end - put.begin < CALL_S + 4.0  # it waited for 5 s more

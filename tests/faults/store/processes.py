"""The processes of the campaign: nodes of the pool, and clients attached to them."""

from __future__ import annotations

import itertools
import json
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.faults.store.history import Op, read_history

from kvferry.errors import KVFerryError
from kvferry.store import Store
from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until

CALL_S = 5.0  # deadline of every call of the clients
PATIENCE_S = 60.0  # for what must come, on a slow machine


class Failure(Exception):
    """Something that must not happen did."""


class ClientProcess:
    """One client; `close` (or `kill`) ends it."""

    def __init__(self, node: NodeChild, history: Path) -> None:
        self.node = node
        self.name = history.stem
        self._history = history
        self._seen = 0
        self._text = b""
        config = json.dumps(node.settings(timeout_s=CALL_S))
        program = [sys.executable, "-m", "tests.faults.store.client", config, str(history)]
        with history.with_suffix(".err").open("wb") as errors:
            self.process = subprocess.Popen(
                [*node.prefix, *program],
                env=dict(node.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        if self.hear() != "ready":
            raise Failure(f"client {self.name} did not start")

    def say(self, *words: Any) -> None:
        """Tell it what to do; `hear` the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, timeout_s: float = PATIENCE_S) -> Any:
        """Its next answer."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failure(f"client {self.name} hangs: no answer for {timeout_s:g} s")
            more = self.process.stdout.read1(65536)
            if not more:
                errors = self._history.with_suffix(".err").read_text(errors="replace")
                raise Failure(f"client {self.name} ended with {self.process.wait(10)}:\n{errors[-4000:]}")
            self._text += more
        line, _newline, self._text = self._text.partition(b"\n")
        return json.loads(line)

    def ask(self, *words: Any) -> Any:
        """Tell it to do something and return the answer."""
        self.say(*words)
        return self.hear()

    def news(self) -> list[Op]:
        """What it did since the last call."""
        ops = read_history(self._history)
        fresh, self._seen = ops[self._seen :], len(ops)
        return fresh

    def kill(self) -> None:
        """SIGKILL, and nothing else; idempotent."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # what had not reached it is of no use any more
                continue


class Pool:
    """Nodes, each on a pretended host of its own, and one client for each."""

    def __init__(self, directory: Path, size: int, dram: str = "32MiB") -> None:
        self.directory = directory
        self.size = size
        self.nodes: list[NodeChild] = []
        self.clients: list[ClientProcess] = []
        self._dram = dram
        self._numbers = itertools.count()
        self._all: list[NodeChild] = []

    def start_node(self) -> NodeChild:
        """One more node."""
        environ = {
            "KVFERRY_CLUSTER_HOST": f"host-{next(self._numbers)}",
            "KVFERRY_CLUSTER_LEASE_S": "3",  # a slow machine must not make anybody seem dead
        }
        node = NodeChild(self.directory, "--dram", self._dram, "--drain", "20", environ=environ)
        self.nodes.append(node)
        self._all.append(node)
        return node

    def start_client(self, node: NodeChild) -> ClientProcess:
        """One more client; not among `clients`."""
        return ClientProcess(node, self.directory / f"client-{next(self._numbers)}.log")

    def complete(self) -> None:
        """As many nodes and clients as there should be, which know each other."""
        while len(self.nodes) < self.size:
            self.start_node()
        for node in self.nodes:
            with node.open() as store:
                wait_until(
                    lambda store=store: len(store.members) == len(self.nodes), PATIENCE_S, "all members"
                )
        for client in [client for client in self.clients if client.node not in self.nodes]:
            client.kill()
            self.clients.remove(client)
        for node in self.nodes:
            if all(client.node is not node for client in self.clients):
                self.clients.append(self.start_client(node))

    def clients_of(self, node: NodeChild) -> frozenset[str]:
        """The names of the clients attached to a node."""
        return frozenset(client.name for client in self.clients if client.node is node)

    def kill(self, node: NodeChild) -> None:
        """SIGKILL a node."""
        self.nodes.remove(node)
        node.kill()

    def leave(self, node: NodeChild) -> None:
        """SIGTERM a node: it drains and ends."""
        self.nodes.remove(node)
        code = node.stop()
        if code != 0:
            raise Failure(f"a node that was asked to leave ended with {code}:\n{node.log()}")

    def objects(self) -> int:
        """How many objects all nodes hold together."""
        total = 0
        for node in self.nodes:
            with node.open() as store:
                total += store.node_stats().objects
        return total

    def forget(self) -> None:
        """Remove everything, from some node."""
        with self.nodes[0].open() as store:
            for info in list(store.scan()):
                _remove(store, info.key)
            wait_until(lambda: not list(store.scan()), PATIENCE_S, "an empty store")

    def no_pins(self) -> None:
        """Nobody reads any more: nothing may be pinned."""
        for node in self.nodes:
            with node.open() as store:
                wait_until(lambda store=store: store.node_stats().pinned_objects == 0, PATIENCE_S, "no pins")

    def check_alive(self) -> None:
        """No node may have ended by itself."""
        for node in self.nodes:
            if node.process.poll() is not None:
                raise Failure(f"a node ended by itself with {node.process.returncode}:\n{node.log()[-4000:]}")

    def close(self) -> None:
        """End everything."""
        for client in self.clients:
            client.kill()
        for node in self._all:
            node.kill()


def _remove(store: Store, key: bytes) -> None:
    try:
        store.remove(key)
    except KVFerryError as error:
        raise Failure(f"{key!r} cannot be removed although all nodes live: {error}") from None

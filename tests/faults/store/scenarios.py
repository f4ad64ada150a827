"""What strikes the pool, one function for each kind: called while the clients are at work."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.store.history import Op
from tests.faults.store.processes import PATIENCE_S, ClientProcess, Failure, Pool

from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until


@dataclass
class Round:
    """One round under way."""

    number: int
    rng: random.Random
    pool: Pool
    pause_s: float  # how long a node is stopped
    durable: list[str]
    may_fail: frozenset[str] = frozenset()
    one_content: bool = True
    was_away: bool = False  # a node was, and is back: all must see the same again
    more_ops: list[Op] = field(default_factory=list)

    def nap(self, longest_s: float) -> None:
        """A random pause."""
        time.sleep(self.rng.random() * longest_s)

    def key(self, name: str, size: int) -> str:
        """A key of this round."""
        return f"r{self.number}/{name}/{size}"

    def victim(self) -> NodeChild:
        """Some node; its clients may fail from now on."""
        node = self.rng.choice(self.pool.nodes)
        self.may_fail |= self.pool.clients_of(node)
        return node

    def killed(self, client: ClientProcess) -> None:
        """SIGKILL a client that is not among those of all rounds; what it had begun counts."""
        client.kill()
        self.more_ops += client.news()


def kill_node(now: Round) -> None:
    """A node dies: it held replicas and owned a share of the directory."""
    now.pool.kill(now.victim())


def kill_two(now: Round) -> None:
    """A second node dies as soon as what the first one had held is whole again."""
    now.pool.kill(now.victim())
    wait_until(lambda: copies_of_durable(now) >= 2 * len(now.durable), PATIENCE_S, "repair")
    now.pool.kill(now.victim())


def copies_of_durable(now: Round) -> int:
    """How many copies of the durable keys the nodes hold; only asked while there is nothing else."""
    return now.pool.objects()


def stop_node(now: Round) -> None:
    """A node stands still for a while. Nobody finds what was removed meanwhile, its own clients included."""
    victim = now.victim()
    now.was_away = True
    now.one_content = False
    victim.pause()
    time.sleep(now.pause_s)
    victim.resume()


def restart_node(now: Round) -> None:
    """A node dies, and another takes its place at once."""
    now.pool.kill(now.victim())
    now.pool.start_node()


def join_and_leave(now: Round) -> None:
    """A node joins, and another one leaves after it has moved away what it held."""
    now.pool.start_node()
    leaving = now.pool.nodes[0]
    now.may_fail |= now.pool.clients_of(leaving)
    now.pool.leave(leaving)


def kill_readers(now: Round) -> None:
    """Clients die while they read; what they had pinned is free again."""
    for _ in range(2):
        client = now.pool.start_client(now.rng.choice(now.pool.nodes))
        client.say("run", now.durable, now.durable, now.durable, False, 60.0, f"{now.number}")
        now.nap(0.2)
        now.killed(client)


def kill_writers(now: Round) -> None:
    """Clients die in the middle of puts; nobody sees half an object, and the key can be used at once."""
    key = now.key("hammered", 6 << 20)
    for _ in range(3):
        client = now.pool.start_client(now.rng.choice(now.pool.nodes))
        client.say("hammer", key)
        now.nap(0.15)
        now.killed(client)
        other = now.pool.start_client(now.rng.choice(now.pool.nodes))
        ends = [other.ask("get", key), other.ask("put", key), other.ask("get", key), other.ask("remove", key)]
        now.more_ops += other.news()
        other.kill()
        stored = ends[1].split()[0] in ("created", "there")
        if ends[0] not in (0, "absent") or not stored or ends[2:] != [0, "ok"]:
            raise Failure(f"after the death of a writer get, put, get, remove ended as {ends}")


def fill_pools(now: Round) -> None:
    """More is put than fits: it goes on, at the cost of what is worth least."""
    writers = [now.pool.start_client(node) for node in now.pool.nodes]
    for index, writer in enumerate(writers):
        writer.say("fill", [now.key(f"filler-{index}-{n}", 1 << 20) for n in range(50)])
    for writer in writers:
        ends = writer.hear()
        if set(ends) - {"created", "resource_exhausted"} or ends.get("created", 0) < 45:
            raise Failure(f"puts to a full pool ended as {ends}")
        now.more_ops += writer.news()
        writer.kill()
    now.durable.clear()


@dataclass(frozen=True)
class Scenario:
    """One kind of round."""

    strike: Callable[[Round], None]
    only_durable: bool = False  # the clients write nothing
    short: bool = False  # among those of CI
    pauses: bool = False  # for `Round.pause_s`

    def traffic(self, traffic_s: float, pause_s: float) -> float:
        """For how long there is traffic: all the while that something pauses, too."""
        return traffic_s + pause_s if self.pauses else traffic_s


SCENARIOS = (
    Scenario(kill_node, short=True),
    Scenario(kill_writers, short=True),
    Scenario(kill_two, only_durable=True, short=True),
    Scenario(join_and_leave),
    Scenario(kill_readers),
    Scenario(fill_pools, short=True),
    Scenario(restart_node),
    Scenario(stop_node, short=True, pauses=True),
)

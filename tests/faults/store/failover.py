"""How long the death of a node is felt by those who read what it held: measured, and held to limits."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.store.history import Op
from tests.faults.store.processes import ClientProcess, Failure, Pool

from kvferry.testing.nodes import NodeChild

BEFORE_S, AFTER_S = 0.3, 1.0
OBJECT_BYTES = 20_000
KEYS = 20


@dataclass(frozen=True)
class Limits:
    """In seconds."""

    fail_over_s: float  # a read of what has a live replica
    absent_s: float  # from the death until what had none is answered as absent

    def check(self, seen: Felt) -> None:
        """Raise `Failure` if it took longer."""
        if seen.slowest_read_s > self.fail_over_s:
            raise Failure(f"a read took {seen.slowest_read_s:.3f} s to fail over, not {self.fail_over_s:g} s")
        if seen.absent_after_s > self.absent_s:
            raise Failure(f"absence took {seen.absent_after_s:.3f} s to be answered, not {self.absent_s:g} s")
        if seen.late_fail_overs:
            raise Failure(f"{seen.late_fail_overs} reads failed over once more, long after the death")


PROMISED = Limits(0.1, 1.0)
SLOW_MACHINE = Limits(2.0, 3.0)  # whose processes wait for a processor


@dataclass
class Felt:
    """What readers felt, the worst of it."""

    kills: int = 0
    reads: int = 0
    slowest_read_s: float = 0.0
    absent_after_s: float = 0.0
    late_fail_overs: int = 0
    slowest_by_kill_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        slowest = sorted(self.slowest_by_kill_s)
        return (
            f"{self.kills} kills, {self.reads} reads: slowest of what has a replica "
            f"{1e3 * self.slowest_read_s:.1f} ms (median {1e3 * slowest[len(slowest) // 2]:.1f} ms), "
            f"absent {1e3 * self.absent_after_s:.1f} ms after the death at the latest"
        )


def measure(directory: Path, kills: int) -> Felt:
    """Kill nodes under readers, theirs and others. `Failure` if a read was wrong, failed, or missed."""
    felt = Felt()
    pool = Pool(directory, 3)
    try:
        for number in range(kills):
            pool.complete()
            _kill_one(pool, number, felt)
            pool.complete()
            pool.forget()
    finally:
        pool.close()
    return felt


def _kill_one(pool: Pool, number: int, felt: Felt) -> None:
    victim = pool.nodes[0]
    lone = [f"kill-{number}/lone-{i}/{OBJECT_BYTES}" for i in range(KEYS)]
    kept = [f"kill-{number}/kept-{i}/{OBJECT_BYTES}" for i in range(KEYS)]
    first = 1 - number % 2  # the victim has readers of its own in every other round
    readers = [pool.start_client(node) for node in pool.nodes[first:]]
    _put(pool, victim, lone, kept)
    askers = [pool.start_client(node) for node in pool.nodes[first:]]
    for reader in readers:
        reader.say("read", kept, BEFORE_S + AFTER_S)
    time.sleep(BEFORE_S)
    pool.kill(victim)
    killed_at = time.monotonic()
    for asker in askers:  # not before: what is read again and again gains replicas
        asker.say("read", lone, AFTER_S)
    for client in (*readers, *askers):
        client.hear()
    felt.kills += 1
    felt.slowest_by_kill_s.append(0.0)
    for reader in readers:
        _judge_kept(reader.news(), killed_at, felt)
        felt.late_fail_overs += _fail_overs_of(reader, [*kept, *lone])
    for asker in askers:
        _judge_lone(asker.news(), killed_at, felt)
    for client in (*readers, *askers):
        client.kill()


def _put(pool: Pool, victim: NodeChild, lone: list[str], kept: list[str]) -> None:
    [writer] = [client for client in pool.clients if client.node is victim]
    if writer.ask("each", "put", lone) != ["created 1"] * KEYS:
        raise Failure("puts failed with all nodes alive")
    if writer.ask("each", "put", kept, 0, 2) != ["created 2"] * KEYS:
        raise Failure("puts with two replicas failed with all nodes alive")
    writer.news()


def _judge_kept(ops: Iterable[Op], killed_at: float, felt: Felt) -> None:
    for op in ops:
        felt.reads += 1
        _must(op.outcome == 0, op, killed_at)
        if op.end >= killed_at:
            felt.slowest_by_kill_s[-1] = max(felt.slowest_by_kill_s[-1], op.end - op.begin)
    felt.slowest_read_s = max(felt.slowest_read_s, felt.slowest_by_kill_s[-1])


def _judge_lone(ops: Iterable[Op], killed_at: float, felt: Felt) -> None:
    for op in ops:
        felt.reads += 1
        _must(op.outcome in (0, "absent"), op, killed_at)
        # The first ones may be read in the dead node's memory, before its end was noticed.
        felt.absent_after_s = max(felt.absent_after_s, op.end - (killed_at if op.outcome == 0 else op.begin))


def _must(right: bool, op: Op, killed_at: float) -> None:
    if not right:
        raise Failure(f"{op.begin - killed_at:.3f} to {op.end - killed_at:.3f} s after the death: {op}")


def _fail_overs_of(reader: ClientProcess, keys: list[str]) -> int:
    """How often reading all of them once more, long after the death, meets the dead node."""
    before = reader.ask("counter", "client_failovers_total")
    reader.ask("each", "get", keys)
    return int(reader.ask("counter", "client_failovers_total")) - int(before)

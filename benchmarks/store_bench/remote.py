"""A client that shares no memory with its node, as on another host: beside the engine and a bare stream."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Iterator

from benchmarks.store_bench.questions import CHAIN, SMALL, median_us, put_chain
from benchmarks.store_bench.sides import BURST_S, Ours, burst_of, in_turns
from benchmarks.transfer_bench.cases import SETS, Case, block_sets
from benchmarks.transfer_bench.rows import Row
from benchmarks.transfer_bench.sides import Ours as EngineOurs
from benchmarks.transfer_bench.sides import Target, raw_streams

BATCH = Case(64 << 10, 64)
BATCHES = (BATCH, Case(64 << 10, 256))
OPS = {"get": "read", "put": "write"}
LENGTH = 64 << 20
LINK_BURST_S = 0.1  # TCP loses a packet now and then and waits: the median is of many operations


class EngineSide:
    """The same bytes moved by the transfer engine alone, with a prepared plan."""

    name = "the transfer engine, tcp"

    def __init__(self, target: Target, stack: contextlib.ExitStack) -> None:
        self._target, self._engine = target, EngineOurs("tcp", target, stack)
        self.prepare(BATCH)

    def prepare(self, case: Case) -> None:
        self._calls = self._engine.calls("foreign", case, block_sets(case, self._target.length))

    def burst(self, op: str, seconds: float) -> list[float]:
        turns = itertools.cycle(range(SETS))
        return burst_of(lambda: self._calls[OPS[op]](next(turns)), seconds)


def batches(
    ours: Ours, engine: EngineSide, rounds: int, seconds: float = BURST_S, over: str = ""
) -> Iterator[Row]:
    """Many values in one call. `over`: the link, if it is not plain loopback."""
    for case in BATCHES:
        ours.prepare(case)
        engine.prepare(case)
        for op, call in (("get", "get_many_into"), ("put", "put_many")):
            took = in_turns([ours, engine], op, rounds, seconds)
            mine, theirs = (case.bytes / took[side.name] / 1e9 for side in (ours, engine))
            yield Row(f"remote {call}", case.name + over, mine, "GB/s", engine.name, theirs, ">= 0.85")


def small(ours: Ours, target: Target, rounds: int, stack: contextlib.ExitStack) -> Iterator[Row]:
    """One small value; the stream's request and answer have as many bytes."""
    case = Case(SMALL, 1)
    ours.prepare(case)
    stream = raw_streams(target, 1, stack)(case, block_sets(case, LENGTH))["read"]
    took: dict[str, list[float]] = {"ours": [], "stream": []}
    for _ in range(rounds):
        took["ours"] += ours.burst("get", BURST_S)
        took["stream"] += burst_of(lambda: stream(0), BURST_S)
    mine, theirs = (statistics.median(took[name]) * 1e6 for name in ("ours", "stream"))
    yield Row("remote get_into", f"{SMALL} B", mine, "us p50", "a raw ping-pong", theirs, "<= 1.5")
    keys = put_chain(ours.store, seed=7)
    yield Row(
        "match_prefix", f"{CHAIN} keys, remote", median_us(lambda: ours.store.match_prefix(keys)) / 1e3, "ms"
    )


def link_rows(ours: Ours, gbit: int, rounds: int) -> Iterator[Row]:
    """Over a link that carries so much."""
    with contextlib.ExitStack() as stack:
        engine = EngineSide(Target(LENGTH, stack), stack)
        yield from batches(ours, engine, rounds, LINK_BURST_S, f", {gbit} Gbit/s link")


def remote_rows(ours: Ours, rounds: int) -> Iterator[Row]:
    """All of the above."""
    with contextlib.ExitStack() as stack:
        target = Target(LENGTH, stack)
        yield from batches(ours, EngineSide(target, stack), rounds)
        yield from small(ours, target, rounds, stack)

"""What a connector costs where nothing is found: pairs of the same work with it and without it.

Other programs' load decides single figures of wall time, and less so processor time; and it changes slowly.
So each pair is short, its two turns follow one another in an order that changes, and what is reported is the
median of the pairs' ratios, with the middle half of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.vllm_bench.run import Run, fresh_folder, node

from engines.engine_lab import LabEngine

PROMPTS, PROMPT, ANSWER = 8, 250, 32  # at a time; tokens


class Spread(NamedTuple):
    """Of the pairs' ratios: the median, and between which values the middle half lies."""

    ratio: float
    low: float
    high: float
    with_it: float  # medians of the turns
    without: float

    def __str__(self) -> str:
        return f"{self.low:.3f} to {self.high:.3f}"


class Costs:
    """Wall and processor seconds of each pair's turns, without the connector and with it."""

    def __init__(self) -> None:
        self.wall: list[tuple[float, float]] = []
        self.cpu: list[tuple[float, float]] = []

    def add(self, off: tuple[float, float], on: tuple[float, float]) -> None:
        """A pair, (wall, cpu) each."""
        self.wall.append((off[0], on[0]))
        self.cpu.append((off[1], on[1]))


def spread(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Return how pairs of (without, with) compare. Needs two pairs."""
    ratios = [on / off for off, on in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    without, with_it = (statistics.median(each) for each in zip(*pairs, strict=True))
    return Spread(middle, low, high, with_it, without)


def nothing_shared(run: Run, pairs: int) -> Costs:
    """Prompts that share nothing, eight at a time; all of their blocks are saved. The node's memory is full
    from the first pair on, as in a pool that has run for a while."""
    costs = Costs()
    with ExitStack() as stack:
        cluster = fresh_folder(run.folder, "nothing")
        room = 2 * PROMPTS * (PROMPT + ANSWER) * run.token_bytes >> 20
        pool = node(stack, cluster, "--dram", f"{room}MiB")
        engines = {"off": run.start(None), "on": run.ours(cluster)}
        for _ in range(4):
            for engine in engines.values():
                _turn(run, engine, None)
        for number in range(pairs):
            turns = {
                name: _turn(run, engines[name], pool.process.pid if name == "on" else None)
                for name in sorted(engines, reverse=bool(number % 2))
            }
            costs.add(turns["off"], turns["on"])
        for engine in engines.values():
            run.lab.stop(engine)
    return costs


def _turn(run: Run, engine: LabEngine, node_pid: int | None) -> tuple[float, float]:
    """Wall and processor seconds of one turn; the node's processor time, too, if its pid is given."""
    prompts = [run.tokens(PROMPT) for _ in range(PROMPTS)]
    before = _cpu_seconds(node_pid)
    answer = engine.call("timed", prompts=prompts, max_tokens=ANSWER)
    return answer["seconds"], answer["cpu_s"] + _cpu_seconds(node_pid) - before


def _cpu_seconds(pid: int | None) -> float:
    """Processor time of a process's living threads until now."""
    if pid is None:
        return 0.0
    taken = [file.read_text().split()[0] for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, taken)) / 1e9

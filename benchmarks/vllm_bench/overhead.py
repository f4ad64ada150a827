"""What a connector costs where nothing is found: pairs of the same work with it and without it.

Other programs' load decides single figures of wall time, and less so processor time; and it changes slowly.
So each pair is short, its two turns follow one another in an order that changes, and what is reported is the
median of the pairs' ratios, with the middle half of them. Where even that is noise of several percent, there
is what the connector's own hooks and threads take, by a meter inside the engine: both parts of that quotient
come from the same turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.vllm_bench.run import Run, fresh_folder, node

from engines.engine_lab import LabEngine


class Work(NamedTuple):
    """A turn: so many prompts at a time, of so many tokens, and tokens of each answer."""

    prompts: int = 8
    prompt: int = 250
    answer: int = 32

    def __str__(self) -> str:
        return f"{self.prompts} prompts of {self.prompt} + {self.answer} tokens"


# So that the engine has touched all of its memory before it is measured, as one that has run for a while has.
FEW_BLOCKS, WARM_UP = {"num_gpu_blocks_override": 128}, 8
SMALL_WORK = Work(4, 120, 16)  # for a model that computes for seconds


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

    def __init__(self, work: Work) -> None:
        self.work = work
        self.wall: list[tuple[float, float]] = []
        self.cpu: list[tuple[float, float]] = []
        self.shares: list[float] = []  # what of the processor time the connector took, in turns of their own

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


def nothing_shared(run: Run, work: Work, pairs: int) -> Costs:
    """Prompts that share nothing, several at a time; all of their blocks are saved. The node's memory is full
    from the first pair on, as in a pool that has run for a while."""
    costs = Costs(work)
    with ExitStack() as stack:
        cluster = fresh_folder(run.folder, f"nothing-{run.model.name}")
        room = 2 * work.prompts * (work.prompt + work.answer) * run.token_bytes >> 20
        pool = node(stack, cluster, "--dram", f"{room}MiB")
        engines = {"off": run.start(None, **FEW_BLOCKS), "on": run.ours(cluster, **FEW_BLOCKS)}
        for _ in range(WARM_UP):
            for engine in engines.values():
                _turn(run, work, engine, None)
        for number in range(pairs):
            turns = {
                name: _turn(run, work, engines[name], pool.process.pid if name == "on" else None)
                for name in sorted(engines, reverse=bool(number % 2))
            }
            costs.add(turns["off"], turns["on"])
        engines["on"].call("meter_connector", thread_prefix="kvf")
        for _ in range(pairs):
            costs.shares.append(_share(run, work, engines["on"]))
        for engine in engines.values():
            run.lab.stop(engine)
    return costs


def _share(run: Run, work: Work, engine: LabEngine) -> float:
    """What the connector's hooks and threads took of a turn's processor time, to the rest of it."""
    prompts = [run.tokens(work.prompt) for _ in range(work.prompts)]
    answer = engine.call("timed", prompts=prompts, max_tokens=work.answer)
    return float(answer["connector_s"] / (answer["cpu_s"] - answer["connector_s"]))


def _turn(run: Run, work: Work, engine: LabEngine, node_pid: int | None) -> tuple[float, float]:
    """Wall and processor seconds of one turn; the node's processor time, too, if its pid is given."""
    prompts = [run.tokens(work.prompt) for _ in range(work.prompts)]
    before = _cpu_seconds(node_pid)
    answer = engine.call("timed", prompts=prompts, max_tokens=work.answer)
    return answer["seconds"], answer["cpu_s"] + _cpu_seconds(node_pid) - before


def _cpu_seconds(pid: int | None) -> float:
    """Processor time of a process's living threads until now."""
    if pid is None:
        return 0.0
    taken = [file.read_text().split()[0] for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, taken)) / 1e9

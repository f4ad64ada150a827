"""Where the time of one transfer goes, by the engine's own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.transfer_bench.cases import KIB, Case, block_sets
from benchmarks.transfer_bench.rows import Row
from benchmarks.transfer_bench.sides import Ours, Target

CASES = (Case(4 * KIB, 1), Case(4 * KIB, 1024), Case(64 * KIB, 128))
STAGES = ("submit", "queue", "move", "settle", "wake")
FOR_S = 0.1
LEAST = 5
BENCH = "stages"


def stage_rows(ours: dict[str, Ours], target: Target) -> Iterator[Row]:
    """Medians in microseconds: each stage, what is outside of them (Python), and preparing the plan."""
    for region, transport in (("arena", "shm"), ("foreign", "shm"), ("foreign", "tcp")):
        name = transport if transport == "tcp" else f"{transport} {region}"
        for case in CASES:
            if case.bytes <= target.length:
                yield from _of(f"{name} read {case.name}", ours[transport], region, case, target)


def _of(name: str, ours: Ours, region: str, case: Case, target: Target) -> Iterator[Row]:
    sets = block_sets(case, target.length)
    started = time.perf_counter()
    plans = [ours.plan(region, case, blocks, "read") for blocks in sets]
    prepare_us = (time.perf_counter() - started) / len(plans) * 1e6

    def submit_and_wait(plan: Any) -> Any:
        transfer = ours.engine.submit(plan)
        transfer.wait()
        return transfer

    for how, move in (("execute", ours.engine.execute), ("submit, wait", submit_and_wait)):
        yield Row(BENCH, f"{name}, {how}", prepare_us, "us prepare (once)")
        for stage, took_us in _medians(move, plans).items():
            yield Row(BENCH, f"{name}, {how}", took_us, f"us {stage}")


def _medians(move: Callable[[Any], Any], plans: Sequence[Any]) -> dict[str, float]:
    took: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "outside")}
    until = time.perf_counter() + FOR_S
    while time.perf_counter() < until or len(took["outside"]) < LEAST:
        started = time.perf_counter()
        transfer = move(plans[len(took["outside"]) % len(plans)])
        whole_s = time.perf_counter() - started
        transfer.raise_if_failed()
        parts = {stage: getattr(transfer.stages, f"{stage}_s") for stage in STAGES}
        for stage, seconds in parts.items():
            took[stage].append(seconds)
        took["outside"].append(max(0.0, whole_s - sum(parts.values())))
    return {stage: statistics.median(seconds) * 1e6 for stage, seconds in took.items()}

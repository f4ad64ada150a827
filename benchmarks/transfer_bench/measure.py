"""Interleaved rounds: every side has its turn in every round, for a short burst."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.transfer_bench.cases import Case
from benchmarks.transfer_bench.sides import OPS, Side
from benchmarks.transfer_bench.timing import Burst, boosted

BURST_S = 0.03
SLOW_S = 0.25  # a side whose burst takes longer has fewer rounds
SLOW_ROUNDS = 3


@dataclass
class Figures:
    """What the bursts of one side, operation and case come to."""

    case: Case
    bursts: list[Burst] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """GB/s, median of the bursts, each by the median of its operations: one that was interrupted by
        something else on the machine says nothing."""
        return statistics.median(self.case.bytes / statistics.median(b.took_s) / 1e9 for b in self.bursts)

    @property
    def best_speed(self) -> float:
        """GB/s of the fastest operation: over tcp it depends on which core each thread happens to be put."""
        return max(self.case.bytes / min(b.took_s) / 1e9 for b in self.bursts)

    @property
    def cpu(self) -> float:
        """Processor seconds of both processes per GB, median of the bursts."""
        return statistics.median(b.cpu_s / (len(b.took_s) * self.case.bytes) * 1e9 for b in self.bursts)

    def latency_us(self, percentile: float) -> float:
        """Of one operation, over all bursts."""
        took = sorted(one for burst in self.bursts for one in burst.took_s)
        return took[min(len(took) - 1, int(len(took) * percentile / 100))] * 1e6


Measured = dict[tuple[str, str], Figures]  # by the names of side and operation


@dataclass(frozen=True)
class Method:
    """How long and how."""

    rounds: int
    boost: bool
    burst_s: float = BURST_S


def measure(
    case: Case, sides: Sequence[Side], method: Method, failed: Callable[[Side, Exception], None]
) -> Measured:
    """Verify and time all sides on one case. A side that fails is reported and left out from then on."""
    ready = []
    for side in sides:
        try:
            side.prepare(case)
            for op in OPS:
                side.verify(op)
            ready.append(side)
        except Exception as error:  # noqa: BLE001  (the others go on, and the report names it)
            failed(side, error)
    measured: Measured = {(side.name, op): Figures(case) for side in ready for op in OPS}
    for number in range(method.rounds):
        turn = number % len(ready) if ready else 0
        for side in ready[turn:] + ready[:turn]:
            if number % side.every == 0:
                _turn(side, measured, method)
    return measured


def _turn(side: Side, measured: Measured, method: Method) -> None:
    started = time.monotonic()
    with boosted(side.pids, method.boost):
        for op in OPS:
            figures = measured[side.name, op]
            slow = figures.bursts and figures.bursts[0].seconds > SLOW_S
            if not slow or len(figures.bursts) < SLOW_ROUNDS:
                figures.bursts.append(side.burst(op, method.burst_s))
    if method.boost:
        time.sleep((time.monotonic() - started) / 3)  # what else runs here must get on, too

"""One burst of operations: how long each took, and the processor time of both processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.transfer_bench.cases import SETS

WARM_UP_S = 0.01  # an operation that takes less than this is done once before the clock runs


@dataclass(frozen=True)
class Burst:
    """Seconds of each operation, and processor seconds of both processes for all of them together."""

    took_s: tuple[float, ...]
    cpu_s: float

    @property
    def seconds(self) -> float:
        return sum(self.took_s)


def cpu_clock(pid: int) -> int:
    """The clock of another process's processor time, all threads (see clock_getcpuclockid(3))."""
    return (~pid << 3) | 2


def cpu_s(pids: Sequence[int]) -> float:
    """Processor time of the processes so far."""
    return sum(time.clock_gettime(cpu_clock(pid)) for pid in pids)


def run_burst(
    call: Callable[[int], None], seconds: float, pids: Sequence[int], expected_s: float = 0.0
) -> Burst:
    """Call `call(set number)` for about `seconds`, at least once. `pids`: whose processor time counts."""
    clock = time.perf_counter
    if expected_s < WARM_UP_S:
        call(SETS - 1)
    took: list[float] = []
    before_s, started = cpu_s(pids), clock()
    ended = started
    while not took or ended - started < seconds:
        call(len(took) % SETS)
        now = clock()
        took.append(now - ended)
        ended = now
    return Burst(tuple(took), cpu_s(pids) - before_s)


@contextlib.contextmanager
def boosted(pids: Sequence[int], wanted: bool) -> Iterator[None]:
    """While inside, all threads of the processes come before everything else on the machine (needs root)."""
    if wanted:
        _renice(pids, -20)
    try:
        yield
    finally:
        if wanted:
            _renice(pids, 0)


def _renice(pids: Sequence[int], nice: int) -> None:
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # it ended since
                os.setpriority(os.PRIO_PROCESS, int(thread), nice)
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists():
            group.write_text(str(nice))

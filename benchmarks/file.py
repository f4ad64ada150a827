"""Stores blocks in a file and loads them: KVFerry beside `pwritev` and `preadv`, in turns, in one run.

    python benchmarks/file.py [--json FILE] [--path FILE]

A case is SIZExCOUNT scattered blocks; the plain side is one thread that does one call after the other, with
O_DIRECT if ours is direct. Both use the same file and memory. A figure is the median of its rounds; bytes are
checked. The file needs 256 MiB; give `--path` on the disk in question. Takes less than half a minute on a
disk that does 1 GB/s.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.transfer_bench.report import machine  # noqa: E402
from benchmarks.transfer_bench.rows import Row, table, write_json  # noqa: E402

from kvferry.transfer import Engine, Region  # noqa: E402

LENGTH = 256 << 20
CASES = [(4 << 10, 1), (4 << 10, 1024), (64 << 10, 512), (1 << 20, 64), (16 << 20, 4)]
ROUNDS = 5
TARGETS = {"4096x1": "", "4096x1024": ">= 2"}  # many small ones at once are what a queue is for
USUAL_TARGET = ">= 0.95"

Operation = Callable[[], None]
Places = npt.NDArray[np.int64]


class Case:
    """Blocks of `size` bytes: where they lie in memory and in the file."""

    def __init__(self, size: int, count: int) -> None:
        rng = np.random.default_rng(size + count)
        self.size, self.bytes = size, size * count
        self.name = f"{size}x{count}"
        self.here: Places = rng.permutation(LENGTH // size)[:count] * size
        self.there: Places = rng.permutation(LENGTH // size)[:count] * size


def ours(engine: Engine, memory: Region, file: Region, case: Case, op: str) -> Operation:
    rows = np.empty((len(case.here), 5), dtype=np.uint64)
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4] = (
        memory.id,
        file.id,
        case.here,
        case.there,
        case.size,
    )
    plan = engine.prepare(engine.self_peer, rows, op)  # type: ignore[arg-type]

    def move() -> None:
        engine.execute(plan).raise_if_failed()

    return move


def plain(fd: int, memory: Region, case: Case, op: str) -> Operation:
    call = os.preadv if op == "read" else os.pwritev
    views = [memory.memory[at : at + case.size] for at in case.here.tolist()]
    calls = list(zip(views, case.there.tolist(), strict=True))

    def move() -> None:
        for view, place in calls:
            if call(fd, [view], place) != case.size:
                raise OSError(f"a short {op} of {case.size} bytes at {place}")

    return move


def check(memory: Region, path: Path, case: Case) -> None:
    """Raise ValueError unless the file holds what the memory holds."""
    with path.open("rb") as file:
        for here, there in list(zip(case.here.tolist(), case.there.tolist(), strict=True))[:64]:
            file.seek(there)
            if file.read(case.size) != memory.memory[here : here + case.size]:
                raise ValueError(f"{case.name}: wrong bytes at {there} of the file")


def measure(sides: dict[str, Operation]) -> dict[str, tuple[float, float]]:
    """Seconds and processor seconds of one operation of each side, medians of rounds in turns."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _round in range(ROUNDS):
        for name, move in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            move()
            took[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: (statistics.median(wall for wall, _ in all_), statistics.median(cpu for _, cpu in all_))
        for name, all_ in took.items()
    }


def rows_of(case: Case, op: str, seconds: dict[str, tuple[float, float]]) -> list[Row]:
    speed = {name: case.bytes / wall / 1e9 for name, (wall, _) in seconds.items()}
    cpu = {name: cpu * 1e9 / case.bytes for name, (_, cpu) in seconds.items()}
    call = "preadv" if op == "read" else "pwritev"
    target = TARGETS.get(case.name, USUAL_TARGET)
    return [
        Row(f"file {op}", case.name, speed["ours"], "GB/s", call, speed["plain"], target),
        Row(f"file {op}", case.name, cpu["ours"], "CPU s/GB", call, cpu["plain"]),
    ]


def run(path: Path) -> tuple[list[Row], str]:
    """Measure all cases with a new file at `path`, which is deleted afterwards."""
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(Engine())
        memory = engine.allocate(LENGTH, name="memory", access="rw")
        np.frombuffer(memory.memory, dtype=np.uint64)[:] = np.arange(LENGTH // 8, dtype=np.uint64)
        stack.callback(path.unlink, missing_ok=True)
        file = engine.open_file(path, length_bytes=LENGTH, create=True, access="rw")
        fd = os.open(path, os.O_RDWR | (os.O_DIRECT if file.note.startswith("direct") else 0))
        stack.callback(os.close, fd)
        whole = Case(1 << 20, LENGTH >> 20)
        ours(
            engine, memory, file, whole, "write"
        )()  # blocks that were never written are read as zeros, at no cost
        for size, count in CASES:
            case = Case(size, count)
            for op in ("write", "read"):
                sides = {
                    "ours": ours(engine, memory, file, case, op),
                    "plain": plain(fd, memory, case, op),
                }
                rows += rows_of(case, op, measure(sides))
                check(memory, path, case)
        note = file.note
    return rows, note


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--path", type=Path, metavar="FILE", help="where to put the file; it must not exist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = options.path or Path(folder) / "kvferry-bench"
        if path.exists():
            parser.error(f"{path} exists")
        rows, note = run(path)
    where = machine()
    print(f"{where}\n{note}\n\n{table(rows)}")
    if options.json:
        write_json(options.json, rows, {"machine": where, "file": note})
    missed = [row for row in rows if row.met is False]
    print(f"\ntargets: {sum(row.met is True for row in rows)} met, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

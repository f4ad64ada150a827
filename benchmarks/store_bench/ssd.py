"""The SSD tier beside fio on the same disk, with the same block size and depth.

Both write to files that are new in every round and preallocated: the node fills one segment after the other,
so fio's file is removed before it writes. A file system has less to do where blocks were written before.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from benchmarks.store_bench.cluster import Nodes
from benchmarks.transfer_bench.rows import Row

from kvferry.store import GetResult, Store

MIB = 1 << 20
DEPTH = 16  # values in one call, requests of fio under way
DRAM, VALUES = 64, 320  # MiB, values of 1 MiB
ROUNDS = 7
FIO_S = 60.0
WRITE_S = 30.0


def _fio(folder: Path, op: str) -> float:
    """GB/s of one pass over as many bytes as our side moves."""
    if op == "write":
        for old in folder.iterdir():
            old.unlink()
    command = [
        "fio",
        "--name=kvferry",
        f"--directory={folder}",
        f"--rw={op}",
        "--bs=1M",
        f"--iodepth={DEPTH}",
    ]
    command += ["--ioengine=libaio", "--direct=1", "--fallocate=native"]
    command += [f"--size={VALUES}M", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=FIO_S)
    return float(json.loads(done.stdout)["jobs"][0][op]["bw_bytes"]) / 1e9


class _Ours:
    """Values that do not fit into memory: puts push others to the disk, and gets bring them back."""

    def __init__(self, store: Store) -> None:
        self._store, self._round = store, 0
        self._source = np.random.default_rng(9).integers(0, 256, DEPTH * MIB, dtype=np.uint8)
        self._target = np.zeros(DEPTH * MIB, dtype=np.uint8)

    def _keys(self, first: int) -> list[str]:
        return [f"ssd-{self._round}-{number}" for number in range(first, first + DEPTH)]

    def _parts(self, memory: np.ndarray) -> list[np.ndarray]:
        return [memory[i * MIB : (i + 1) * MIB] for i in range(DEPTH)]

    def write(self) -> float:
        """GB/s until all are on the disk; puts wait for it, since memory takes a fifth of them."""
        self._round += 1
        before = self._counter("ssd_written_total")
        started = time.perf_counter()
        for first in range(0, VALUES, DEPTH):
            for result in self._store.put_many(self._keys(first), self._parts(self._source)):
                if result.error is not None:
                    raise result.error
        self._await_written(before + VALUES)
        took_s = time.perf_counter() - started
        if self._counter("ssd_skipped_total") > 0:
            raise RuntimeError("the node gave up values that it should have written")
        return VALUES * MIB / took_s / 1e9

    def _counter(self, name: str) -> int:
        value: int = self._store.node_stats().counters[name]
        return value

    def _await_written(self, count: int) -> None:
        until = time.monotonic() + WRITE_S
        while self._counter("ssd_written_total") < count:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"the node does not write to its disk: {self._store.node_stats().counters}"
                )
            time.sleep(0.0005)

    def read(self) -> float:
        """GB/s of the values that left memory first, oldest first."""
        parts, count = self._parts(self._target), 0
        results: list[GetResult] = []
        self._target[:] = 0
        started = time.perf_counter()
        for first in range(0, VALUES - 2 * DRAM, DEPTH):
            results = self._store.get_many_into(self._keys(first), parts)
            count += sum(result.error is None for result in results)
        took_s = time.perf_counter() - started
        for result, part, expected in zip(results, parts, self._parts(self._source), strict=True):
            if result.error is None and not np.array_equal(part, expected):
                raise ValueError("wrong bytes from the SSD tier")
        return count * MIB / took_s / 1e9


def ssd_rows(nodes: Nodes, folder: Path, missing: Callable[[str], None]) -> Iterator[Row]:
    """Writing and reading, in turns; `missing` is told if there is no fio."""
    if shutil.which("fio") is None:
        missing("the SSD tier was not measured: no fio")
        return
    directory, plain = folder / "log", folder / "fio"
    plain.mkdir()
    flags = ["--dram", f"{DRAM}MiB", "--ssd", f"{directory}:2GiB"]
    environ = {"KVFERRY_STORE_SSD_WRITE": "through"}
    with contextlib.ExitStack() as stack:
        node = nodes.start_one(*flags, environ=environ, stack=stack)
        ours = _Ours(nodes.open(node, stack=stack))
        speeds: dict[str, list[tuple[float, float]]] = {"write": [], "read": []}
        for _ in range(ROUNDS):
            speeds["write"].append((ours.write(), _fio(plain, "write")))
            speeds["read"].append((ours.read(), _fio(plain, "read")))
    for op, call in (("write", "put_many"), ("read", "get_many_into")):
        mine, theirs = (statistics.median(side) for side in zip(*speeds[op], strict=True))
        yield Row(
            f"{call}, SSD tier", f"1Mx{DEPTH}", mine, "GB/s", f"fio {op}, depth {DEPTH}", theirs, ">= 0.85"
        )

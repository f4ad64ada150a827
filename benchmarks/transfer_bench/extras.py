"""Figures besides the grid of cases: idle processor time, submitting, bytes of description, fairness."""

from __future__ import annotations

import os
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.transfer_bench import reference
from benchmarks.transfer_bench.cases import KIB, MIB, Case, block_sets
from benchmarks.transfer_bench.rows import Row
from benchmarks.transfer_bench.sides import Ours, Target
from benchmarks.transfer_bench.timing import cpu_s

IDLE_S = 2.0
MANY_BLOCKS = 15_000
SMALL_TRANSFERS = 200
BETWEEN_SMALL_S = 0.0005  # so that they come while the big one is under way, and are not a stream themselves
BLOCK = 64 * KIB
_BYTES_ACKED = 120  # offset in struct tcp_info


def idle(target: Target) -> Row:
    """Processor time of both processes with connected peers and nothing to do, in percent of one core."""
    pids = (os.getpid(), target.helper.pid)
    before_s, started = cpu_s(pids), time.monotonic()
    time.sleep(IDLE_S)
    percent = (cpu_s(pids) - before_s) / (time.monotonic() - started) * 100
    return Row("idle", "both processes, shm and tcp connected", percent, "% of a core", target="< 1")


def _rows(local: int, remote: int, blocks: int, remote_places: int) -> np.ndarray:
    """Pieces of one block each, none of which continues the one before."""
    rng = np.random.default_rng(blocks)
    rows = np.empty((blocks, 5), dtype=np.uint64)
    rows[:, 0], rows[:, 1], rows[:, 4] = local, remote, BLOCK
    rows[:, 2] = rng.permutation(blocks) * BLOCK
    rows[:, 3] = rng.integers(0, remote_places, blocks) * BLOCK
    return rows


def submitting(name: str, ours: Ours, target: Target, blocks: int) -> Iterator[Row]:
    """Time of prepare and of submit for very many scattered blocks."""
    memory = reference.private_memory(blocks * BLOCK)
    region = ours.engine.register(memory, name="many", access="rw")
    rows = _rows(region.id, ours.peer.region("foreign").id, blocks, target.length // BLOCK)
    started = time.perf_counter()
    plan = ours.engine.prepare(ours.peer, rows, "read")
    prepare_ms = (time.perf_counter() - started) * 1e3
    took_ms = []
    for _ in range(5):
        started = time.perf_counter()
        transfer = ours.engine.submit(plan)
        took_ms.append((time.perf_counter() - started) * 1e3)
        transfer.wait()
        transfer.raise_if_failed()
    region.unregister()
    case = f"{blocks} x 64 KiB, {name}"
    yield Row("submit a prepared plan", case, statistics.median(took_ms), "ms", target="< 5")
    yield Row("prepare a plan", case, prepare_ms, "ms")


def _bytes_sent() -> int:
    """What all TCP sockets of this process have sent so far."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the folder's own descriptor
        if link.startswith("socket:"):
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
                    total += struct.unpack_from("=Q", info.ljust(_BYTES_ACKED + 8, b"\0"), _BYTES_ACKED)[0]
    return total


def _sent_by(ours: Ours, target: Target, case: Case, *, again: bool) -> float:
    """Bytes that a reader sends for an operation of a plan that is new to the target, or known to it."""
    plans = [ours.plan("foreign", case, blocks, "read") for blocks in block_sets(case, target.length)]
    for plan in plans if again else ():
        ours.engine.execute(plan).raise_if_failed()
    before = _bytes_sent()
    for plan in plans:
        ours.engine.execute(plan).raise_if_failed()
    return (_bytes_sent() - before) / len(plans)


def description_bytes(ours: Ours, target: Target) -> Iterator[Row]:
    """What one more block costs a reader to send; all that it sends says what it wants."""
    few, many = Case(4 * KIB, 896), Case(4 * KIB, 1024)  # in as many requests
    ours.calls("foreign", few, block_sets(few, target.length))["read"](0)  # connections are made now
    bench, case = "description on the wire", f"tcp read {many.name}"
    fewer, sent, again = (
        _sent_by(ours, target, one, again=known) for one, known in ((few, False), (many, False), (many, True))
    )
    each = (sent - fewer) / (many.count - few.count)
    yield Row(bench, f"{case}, one more block", each, "bytes per block", target="<= 24")
    yield Row(bench, f"{case}, first time", sent, "bytes per operation")
    yield Row(bench, f"{case}, again", again, "bytes per operation")


def _small_latencies_us(ours: Ours, small: Any, big: Any | None, priority: Any = "normal") -> list[float]:
    took_us, under_way = [], None
    for _ in range(SMALL_TRANSFERS):
        time.sleep(BETWEEN_SMALL_S)
        if big is not None and (under_way is None or under_way.settled):
            under_way = ours.engine.submit(big)
            time.sleep(0.002)  # it has begun
        started = time.perf_counter()
        transfer = ours.engine.execute(small, priority=priority)
        took_us.append((time.perf_counter() - started) * 1e6)
        transfer.raise_if_failed()
    if under_way is not None:
        under_way.wait()
        under_way.raise_if_failed()
    return sorted(took_us)


def fairness(name: str, ours: Ours, target: Target) -> Iterator[Row]:
    """Small transfers beside one that moves everything, against small ones alone."""
    memory = reference.private_memory(MIB)
    region = ours.engine.register(memory, name="small", access="rw")
    remote = ours.peer.region("foreign").id
    piece = np.array([[region.id, remote, 0, 0, BLOCK]], dtype=np.uint64)
    whole = np.array([[ours.local, remote, 0, 0, target.length]], dtype=np.uint64)
    small, big = (ours.engine.prepare(ours.peer, rows, "read") for rows in (piece, whole))
    alone = _small_latencies_us(ours, small, None)
    for priority in ("normal", "high"):
        beside = _small_latencies_us(ours, small, big, priority)
        case = f"{SMALL_TRANSFERS} x 64 KiB of {priority} priority beside {target.length // MIB} MiB, {name}"
        for percent in (50, 99):
            place = min(SMALL_TRANSFERS - 1, SMALL_TRANSFERS * percent // 100)
            limit = "<= 3" if percent == 99 else ""
            yield Row("fairness", case, beside[place], f"us p{percent}", "alone", alone[place], limit)
    region.unregister()


def extra_rows(ours: dict[str, Ours], target: Target, blocks: int) -> Iterator[Row]:
    """All of the above."""
    yield idle(target)
    for name, one in ours.items():
        yield from submitting(name, one, target, blocks)
    if target.length >= 4 * MIB:
        yield from description_bytes(ours["tcp"], target)
    for name, one in ours.items():
        yield from fairness(name, one, target)


def available_mib() -> int:
    """Memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // KIB
    return 0

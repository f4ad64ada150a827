"""Moves blocks between two processes of this host, against memcpy and plain loopback sockets, in the same
run.

    python benchmarks/transfer.py [--json FILE] [--docs FILE] [--quick]

Both processes are pinned, one core each. Ours and theirs alternate; each figure is the lower quartile of its
rounds. A case is NUMBER x SIZE scattered blocks per transfer, prepared once. memcpy: one thread, private
memory, the same blocks. plain sockets: the best of one and two streams, contiguous bytes, no protocol but the
number of bytes wanted.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from _harness import (
    Row,
    Seconds,
    interleave,
    machine,
    pin,
    plain,
    private_memory,
    size_name,
    to_markdown,
    write_docs,
    write_json,
)
from kvferry.transfer import Engine, Peer, TransferOptions

SERVER = Path(__file__).with_name("_transfer_server.py")
LENGTH = 128 << 20
BATCH_BYTES = 64 << 20
SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
QUICK_SIZES = [4 << 10, 64 << 10, 64 << 20]
SHM_TARGET = 0.7  # of memcpy, at 64 KiB x 1024
TCP_TARGET = 0.8  # of the best plain stream, from 4 MiB per transfer on: below, round trips are measured


class Memory:
    """The client's target, and a private source for memcpy."""

    def __init__(self) -> None:
        self.target = private_memory(LENGTH, huge=False)
        self.source = private_memory(LENGTH, huge=True)


class Blocks:
    """`count` blocks of `size` bytes at scattered places of both sides."""

    def __init__(self, size: int, count: int) -> None:
        rng = np.random.default_rng(size)
        places = LENGTH // size
        self.size, self.count, self.total = size, count, size * count
        self.here = (rng.permutation(places)[:count] * size).astype(np.uint64)
        self.there = (rng.permutation(places)[:count] * size).astype(np.uint64)

    @property
    def name(self) -> str:
        return f"{self.count} x {size_name(self.size)}"

    def pieces(self, local: int, remote: int) -> np.ndarray:
        rows = np.empty((self.count, 5), dtype=np.uint64)
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4] = (
            local,
            remote,
            self.here,
            self.there,
            self.size,
        )
        return rows


class Client:
    """One engine with a single transport, connected to the server."""

    def __init__(self, transport: str, endpoint: str, memory: Memory, stack: contextlib.ExitStack) -> None:
        options = TransferOptions(transports=(transport,), allow_fallback=False)
        self.engine = stack.enter_context(Engine(options))
        self.peer: Peer = self.engine.connect(endpoint)
        self.local = self.engine.register(memory.target, name="target", access="rw").id

    def reader(self, blocks: Blocks, region: str) -> Callable[[], None]:
        rows = blocks.pieces(self.local, self.peer.region(region).id)
        plan = self.engine.prepare(self.peer, rows, "read")

        def read() -> None:
            transfer = self.engine.submit(plan)
            transfer.wait()
            transfer.raise_if_failed()

        return read


def memcpy(blocks: Blocks, memory: Memory) -> Callable[[], None]:
    arguments = (
        memory.target.ctypes.data,
        memory.source.ctypes.data,
        blocks.here.ctypes.data,
        blocks.there.ctypes.data,
        blocks.count,
        blocks.size,
    )
    return lambda: plain().copy_blocks(*arguments)


def sockets(blocks: Blocks, memory: Memory, fds: list[int], streams: int) -> Callable[[], None]:
    array = (ctypes.c_int * len(fds))(*fds)

    def fetch() -> None:
        if plain().fetch(array, streams, memory.target.ctypes.data, blocks.total) != 0:
            raise ConnectionError("the plain socket server went away")

    return fetch


def cases(quick: bool) -> Iterator[Blocks]:
    for size in QUICK_SIZES if quick else SIZES:
        yield Blocks(size, 1)
        batch = min(1024, BATCH_BYTES // size)
        if batch > 1:
            yield Blocks(size, batch)


def compare(
    blocks: Blocks, clients: dict[str, Client], memory: Memory, fds: list[int], rounds: int
) -> list[Row]:
    sides = {
        "shm foreign": clients["shm"].reader(blocks, "foreign"),
        "shm arena": clients["shm"].reader(blocks, "arena"),
        "tcp": clients["tcp"].reader(blocks, "foreign"),
        "memcpy": memcpy(blocks, memory),
        "1 plain stream": sockets(blocks, memory, fds, 1),
        "2 plain streams": sockets(blocks, memory, fds, 2),
    }
    seconds = interleave(sides, rounds=rounds)
    rows = [row for name in ("shm foreign", "shm arena") for row in shm_rows(name, blocks, seconds)]
    best = min("1 plain stream", "2 plain streams", key=lambda name: seconds[name].wall)
    ours, theirs = (blocks.total / seconds[name].wall / 1e9 for name in ("tcp", best))
    aimed = TCP_TARGET if blocks.total >= 4 << 20 else None
    return [*rows, Row("tcp", blocks.name, ours, "GB/s", best, theirs, aimed)]


def shm_rows(name: str, blocks: Blocks, seconds: Mapping[str, Seconds]) -> Iterator[Row]:
    """Speed by the clock, and for each second of processor time: who else runs here cannot spoil that one."""
    aimed = SHM_TARGET if (blocks.size, blocks.count) == (64 << 10, 1024) else None
    ours, theirs = seconds[name], seconds["memcpy"]
    for measure, unit in (("wall", "GB/s"), ("cpu", "GB/cpu s")):
        speeds = [blocks.total / getattr(side, measure) / 1e9 for side in (ours, theirs)]
        yield Row(name, blocks.name, speeds[0], unit, "memcpy", speeds[1], aimed)


@contextlib.contextmanager
def server() -> Iterator[dict[str, object]]:
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(LENGTH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def run(quick: bool, rounds: int) -> list[Row]:
    rows: list[Row] = []
    with server() as where, contextlib.ExitStack() as stack:
        pin(0)
        memory = Memory()
        clients = {name: Client(name, str(where["endpoint"]), memory, stack) for name in ("shm", "tcp")}
        streams = [
            stack.enter_context(socket.create_connection(("127.0.0.1", int(str(where["plain"])))))
            for _ in range(2)
        ]
        for blocks in cases(quick):
            rows += compare(blocks, clients, memory, [stream.fileno() for stream in streams], rounds)
            print(to_markdown(rows[-5:]).split("\n", 2)[2], flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="also put the table into this page")
    parser.add_argument("--quick", action="store_true", help="three sizes, fewer rounds")
    options = parser.parse_args()
    where = machine()
    rows = run(options.quick, 12 if options.quick else 24)
    print(f"\n{where}\n\n{to_markdown(rows)}")
    if options.json:
        write_json(options.json, rows, where)
    if options.docs:
        write_docs(options.docs, "transfer", f"{where}\n\n{to_markdown(rows)}")
    missed = [row for row in rows if row.met is False]
    print(f"\ntargets: {sum(row.met is True for row in rows)} met, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

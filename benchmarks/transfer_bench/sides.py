"""Who moves the blocks: KVFerry and the raw references. Both are called from this process in the same way."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from benchmarks.transfer_bench import reference
from benchmarks.transfer_bench.cases import BlockSet, Case, block_sets
from benchmarks.transfer_bench.lines import Helper
from benchmarks.transfer_bench.timing import Burst, run_burst

from kvferry.transfer import Engine, TransferOptions

OPS = ("read", "write")
MODULE = "benchmarks.transfer_bench.target"
Calls = dict[str, Callable[[int], None]]  # by operation; the argument is the number of the block set
Make = Callable[[Case, list[BlockSet]], Calls]
Places = list[tuple[np.ndarray, np.ndarray]]


class Side(Protocol):
    """One way to move blocks between two processes."""

    name: str
    every: int  # takes part in each round, or in every second one, ...

    @property
    def pids(self) -> Sequence[int]:
        """Both processes."""

    def prepare(self, case: Case) -> None:
        """Make everything that can be made once per case."""

    def burst(self, op: str, seconds: float) -> Burst:
        """Do operations for about so long."""

    def verify(self, op: str) -> None:
        """One operation whose bytes are checked; AssertionError if they are wrong."""


class Target:
    """The other process, and this process's memory."""

    def __init__(self, length: int, stack: contextlib.ExitStack) -> None:
        self.length = length
        self.helper = stack.enter_context(Helper([sys.executable, "-m", MODULE, str(length)]))
        self.where = self.helper.read()
        self.memory = reference.private_memory(length)
        self.shared = reference.map_shared(self.helper.pid, self.where["fd"], length)

    def ask(self, do: str, memory: str, case: Case, number: int, salt: int) -> int:
        request = {"do": do, "memory": memory, "size": case.size, "count": case.count}
        return int(self.helper.ask({**request, "set": number, "salt": salt})["wrong"])


class LocalSide:
    """A side that runs in this process; `make` returns its calls for a case."""

    every = 1

    def __init__(self, name: str, target: Target, memory: str, make: Make) -> None:
        self.name = name
        self._target, self._memory, self._make = target, memory, make
        self._case: Case | None = None
        self._sets: list[BlockSet] = []
        self._calls: Calls = {}
        self._expected_s: dict[str, float] = {}

    @property
    def pids(self) -> Sequence[int]:
        return (os.getpid(), self._target.helper.pid)

    def prepare(self, case: Case) -> None:
        self._case, self._sets = case, block_sets(case, self._target.length)
        self._calls = self._make(case, self._sets)
        self._expected_s = {}

    def burst(self, op: str, seconds: float) -> Burst:
        burst = run_burst(self._calls[op], seconds, self.pids, self._expected_s.get(op, 0.0))
        self._expected_s[op] = min(burst.took_s)
        return burst

    def verify(self, op: str) -> None:
        assert self._case is not None
        case, memory, salt = self._case, self._target.memory, 7 if op == "read" else 8
        for number in range(len(self._sets) if case.bytes <= 1 << 20 else 1):
            blocks = self._sets[number]
            if op == "read":
                self._target.ask("fill", self._memory, case, number, salt)
                reference.fill(memory, blocks.here, case.size, salt + 1)
                self._calls[op](number)
                wrong = reference.first_wrong(memory, blocks.here, blocks.there, case.size, salt)
            else:
                reference.fill(memory, blocks.here, case.size, salt)
                self._calls[op](number)
                wrong = self._target.ask("check", self._memory, case, number, salt)
            assert wrong == -1, f"{self.name}, {op} {case.name}: block {wrong} has wrong bytes"


class Ours:
    """An engine with a single transport, connected to the target; one side for each of its regions."""

    def __init__(self, transport: str, target: Target, stack: contextlib.ExitStack) -> None:
        options = TransferOptions(transports=(transport,), allow_fallback=False)
        self.engine = stack.enter_context(Engine(options))
        self.peer = self.engine.connect(target.where["endpoint"])
        self.local = self.engine.register(target.memory, name="local", access="rw").id

    def plan(self, region: str, case: Case, blocks: BlockSet, op: Any) -> Any:
        rows = np.empty((case.count, 5), dtype=np.uint64)
        rows[:, 0], rows[:, 1] = self.local, self.peer.region(region).id
        rows[:, 2], rows[:, 3], rows[:, 4] = blocks.here, blocks.there, case.size
        rows[:, 2:4] *= np.uint64(case.size)
        return self.engine.prepare(self.peer, rows, op)

    def calls(self, region: str, case: Case, sets: list[BlockSet]) -> Calls:
        return {op: self._call([self.plan(region, case, blocks, op) for blocks in sets]) for op in OPS}

    def _call(self, plans: list[Any]) -> Callable[[int], None]:
        execute = self.engine.execute

        def call(number: int) -> None:
            execute(plans[number]).raise_if_failed()

        return call


def _numbered(function: Any, first: tuple[Any, ...], sets: Places, case: Case) -> Any:
    """A call of a reference with the block numbers of one set, which are numpy arrays."""
    count, size = case.count, case.size

    def call(number: int) -> None:
        one, other = sets[number]
        if function(*first, one.ctypes.data, other.ctypes.data, count, size):
            raise OSError("a raw reference failed")

    return call


def raw_shared(target: Target, copy: Any) -> Make:
    """Copies from and to a memfd of the target, mapped once."""
    near, far = target.memory.ctypes.data, target.shared.ctypes.data

    def make(case: Case, sets: list[BlockSet]) -> Calls:
        return {
            "read": _numbered(copy, (near, far), [(one.here, one.there) for one in sets], case),
            "write": _numbered(copy, (far, near), [(one.there, one.here) for one in sets], case),
        }

    return make


def raw_prepared(target: Target, copy: Any) -> Make:
    """The same with all arguments converted beforehand: what the copy and the bare call take."""
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    near, far = pointer(target.memory.ctypes.data), pointer(target.shared.ctypes.data)

    def make(case: Case, sets: list[BlockSet]) -> Calls:
        shape = size(case.count), size(case.size)
        places = [(pointer(one.here.ctypes.data), pointer(one.there.ctypes.data)) for one in sets]
        reads = [partial(copy, near, far, here, there, *shape) for here, there in places]
        writes = [partial(copy, far, near, there, here, *shape) for here, there in places]
        return {"read": lambda number: reads[number](), "write": lambda number: writes[number]()}

    return make


def _by_op(function: Any, before: tuple[Any, ...], after: tuple[Any, ...]) -> Make:
    def make(case: Case, sets: list[BlockSet]) -> Calls:
        places = [(one.here, one.there) for one in sets]
        return {
            op: _numbered(function, (*before, code, *after), places, case)
            for op, code in reference.OPS.items()
        }

    return make


def raw_vm(target: Target) -> Make:
    """process_vm_readv and process_vm_writev, 128 blocks per call."""
    addresses = (target.memory.ctypes.data, target.where["foreign"])
    return _by_op(reference.library().vm_blocks, (target.helper.pid,), addresses)


def raw_streams(target: Target, count: int, stack: contextlib.ExitStack) -> Make:
    """`count` TCP streams with a thread each, one request frame per stream and operation."""
    address = ("127.0.0.1", target.where["port"])
    sockets = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
    fds = (ctypes.c_int * count)(*(one.fileno() for one in sockets))
    library = reference.library()
    streams = library.streams_open(fds, count)
    stack.callback(library.streams_close, streams)
    return _by_op(library.streams_move, (streams,), (target.memory.ctypes.data,))


def local_sides(target: Target, stack: contextlib.ExitStack) -> tuple[list[Side], dict[str, Ours]]:
    """Ours and the raw references; the engines are returned, too."""
    ours = {name: Ours(name, target, stack) for name in ("shm", "tcp")}
    library = reference.library()
    sides: list[Side] = [
        LocalSide("shm arena", target, "arena", partial(ours["shm"].calls, "arena")),
        LocalSide("shm foreign", target, "foreign", partial(ours["shm"].calls, "foreign")),
        LocalSide("tcp", target, "foreign", partial(ours["tcp"].calls, "foreign")),
        LocalSide("raw memcpy", target, "shared", raw_shared(target, library.copy_blocks)),
        LocalSide("raw memcpy, prepared", target, "shared", raw_prepared(target, library.copy_blocks)),
        LocalSide("raw process_vm", target, "foreign", raw_vm(target)),
        LocalSide("raw 1 stream", target, "foreign", raw_streams(target, 1, stack)),
        LocalSide("raw 2 streams", target, "foreign", raw_streams(target, 2, stack)),
    ]
    if library.has_streaming_copy():
        sides.append(
            LocalSide("raw streaming copy", target, "shared", raw_shared(target, library.stream_blocks))
        )
    return sides, ours

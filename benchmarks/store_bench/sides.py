"""Our store, the transfer engine below it, and a plain copy, called from this process in the same way."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from benchmarks.transfer_bench import reference
from benchmarks.transfer_bench.cases import Case

from kvferry.store import Store

LENGTH = 64 << 20
MAX_SETS = 256
BURST_S = 0.02


class Side(Protocol):
    """One way to put and to get."""

    name: str

    def prepare(self, case: Case) -> None:
        """Store the values that are got."""

    def burst(self, op: str, seconds: float) -> list[float]:
        """Seconds of each operation, for about so long in all."""


def sets_of(case: Case) -> int:
    """How many operations go by until the same part of the memory has its turn again."""
    return min(LENGTH // case.bytes, MAX_SETS)


def burst_of(
    call: Callable[[], object], seconds: float, after: Callable[[], object] | None = None
) -> list[float]:
    """Call it for about `seconds`, at least once; `after` follows each call, untimed."""
    clock = time.perf_counter
    took: list[float] = []
    until = clock() + seconds
    while not took or clock() < until:
        started = clock()
        call()
        took.append(clock() - started)
        if after is not None:
            after()
    return took


class Ours:
    """A store attached to a node. Single values go by `put` and `get_into`, more by their batch forms."""

    def __init__(self, name: str, store: Store) -> None:
        self.name, self.store = name, store
        self.source = reference.private_memory(LENGTH)
        self.source[:] = np.random.default_rng(3).integers(0, 256, LENGTH, dtype=np.uint8)
        self.target = reference.private_memory(LENGTH)
        for memory in (self.source, self.target):
            store.register(memory)
        self._next = 0
        self._kept: list[list[bytes]] = []  # all below: one element for each set
        self._values: list[list[np.ndarray]] = []
        self._targets: list[list[np.ndarray]] = []
        self._turn = 0

    def prepare(self, case: Case) -> None:
        for keys in self._kept:
            self.store.remove_many(keys)
        sets = range(sets_of(case))
        self._values, self._targets = (
            [
                [memory[at : at + case.size] for at in range(i * case.bytes, (i + 1) * case.bytes, case.size)]
                for i in sets
            ]
            for memory in (self.source, self.target)
        )
        self._kept = [self._fresh(case.count) for _ in sets]
        self.target[:] = 0
        for self._turn in sets:
            self._put(self._kept[self._turn])
            self._get()
        used = case.bytes * len(sets)
        if not np.array_equal(self.source[:used], self.target[:used]):
            raise ValueError(f"{self.name}, {case.name}: wrong bytes")

    def burst(self, op: str, seconds: float) -> list[float]:
        if op == "get":
            return burst_of(self._get, seconds, self._next_turn)
        count = len(self._values[0])
        keys = self._fresh(count)

        def put() -> None:
            self._put(keys)

        def forget() -> None:
            nonlocal keys
            self.store.remove_many(keys)
            keys = self._fresh(count)
            self._next_turn()

        return burst_of(put, seconds, forget)

    def _next_turn(self) -> None:
        self._turn = (self._turn + 1) % len(self._values)

    def _put(self, keys: list[bytes]) -> None:
        values = self._values[self._turn]
        if len(keys) == 1:
            self.store.put(keys[0], values[0])
            return
        for result in self.store.put_many(keys, values):
            if result.error is not None:
                raise result.error

    def _get(self) -> None:
        keys, targets = self._kept[self._turn], self._targets[self._turn]
        if len(keys) == 1:
            self.store.get_into(keys[0], targets[0])
            return
        for result in self.store.get_many_into(keys, targets):
            if result.error is not None:
                raise result.error

    def _fresh(self, count: int) -> list[bytes]:
        self._next += count
        return [b"%s-%d" % (self.name.encode(), number) for number in range(self._next - count, self._next)]


class PlainCopy:
    """The best copy between shared memory and a program's own: streaming stores, block by block."""

    name = "a streaming copy"

    def __init__(self) -> None:
        library = reference.library()
        self._copy = library.stream_blocks if library.has_streaming_copy() else library.copy_blocks
        self._shared, self._fd = reference.shared_memory(LENGTH)
        self._own = reference.private_memory(LENGTH)
        self._own[:] = 1
        self._shared[:] = 2
        self._sets: list[np.ndarray] = []
        self._calls: dict[str, list[Callable[[], object]]] = {}

    def prepare(self, case: Case) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._sets = [
            np.arange(i * case.count, (i + 1) * case.count, dtype=np.uint32) for i in range(sets_of(case))
        ]
        numbers = [pointer(blocks.ctypes.data) for blocks in self._sets]
        own, shared = (pointer(array.ctypes.data) for array in (self._own, self._shared))
        shape, copy = (size(case.count), size(case.size)), self._copy
        self._calls = {
            "get": [partial(copy, own, shared, blocks, blocks, *shape) for blocks in numbers],
            "put": [partial(copy, shared, own, blocks, blocks, *shape) for blocks in numbers],
        }

    def burst(self, op: str, seconds: float) -> list[float]:
        turns = itertools.cycle(self._calls[op])

        def call() -> None:
            next(turns)()

        return burst_of(call, seconds)


def in_turns(sides: Sequence[Side], op: str, rounds: int, seconds: float = BURST_S) -> dict[str, float]:
    """Seconds of one operation of each side: median of its rounds, each by the median of its operations."""
    took: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds):
        turn = number % len(sides)
        for side in [*sides[turn:], *sides[:turn]]:
            took[side.name].append(statistics.median(side.burst(op, seconds)))
    return {name: statistics.median(times) for name, times in took.items()}

"""Our store, the transfer engine below it, and a plain copy, called from this process in the same way."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from benchmarks.transfer_bench import reference
from benchmarks.transfer_bench.cases import Case

from kvferry.store import Store

LENGTH = 64 << 20
BURST_S = 0.02


class Side(Protocol):
    """One way to put and to get."""

    name: str

    def prepare(self, case: Case) -> None:
        """Store the values that are got."""

    def burst(self, op: str, seconds: float) -> list[float]:
        """Seconds of each operation, for about so long in all."""


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
        self._kept: list[bytes] = []
        self._values: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []

    def prepare(self, case: Case) -> None:
        if self._kept:
            self.store.remove_many(self._kept)
        self._values, self._targets = (
            [memory[i * case.size : (i + 1) * case.size] for i in range(case.count)]
            for memory in (self.source, self.target)
        )
        self._kept = self._fresh()
        self._put(self._kept)
        self.target[: case.bytes] = 0
        self._get()
        if not np.array_equal(self.source[: case.bytes], self.target[: case.bytes]):
            raise ValueError(f"{self.name}, {case.name}: wrong bytes")

    def burst(self, op: str, seconds: float) -> list[float]:
        if op == "get":
            return burst_of(self._get, seconds)
        keys = self._fresh()

        def put() -> None:
            self._put(keys)

        def forget() -> None:
            nonlocal keys
            self.store.remove_many(keys)
            keys = self._fresh()

        return burst_of(put, seconds, forget)

    def _put(self, keys: list[bytes]) -> None:
        if len(keys) == 1:
            self.store.put(keys[0], self._values[0])
            return
        for result in self.store.put_many(keys, self._values):
            if result.error is not None:
                raise result.error

    def _get(self) -> None:
        if len(self._kept) == 1:
            self.store.get_into(self._kept[0], self._targets[0])
            return
        for result in self.store.get_many_into(self._kept, self._targets):
            if result.error is not None:
                raise result.error

    def _fresh(self) -> list[bytes]:
        count = len(self._values)
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
        self._calls: dict[str, Callable[[], object]] = {}

    def prepare(self, case: Case) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        blocks = np.arange(case.count, dtype=np.uint32)
        own, shared, numbers = (pointer(array.ctypes.data) for array in (self._own, self._shared, blocks))
        shape = size(case.count), size(case.size)
        copy = self._copy

        def get(_keep: np.ndarray = blocks) -> None:
            copy(own, shared, numbers, numbers, *shape)

        def put(_keep: np.ndarray = blocks) -> None:
            copy(shared, own, numbers, numbers, *shape)

        self._calls = {"get": get, "put": put}

    def burst(self, op: str, seconds: float) -> list[float]:
        return burst_of(self._calls[op], seconds)


def in_turns(sides: Sequence[Side], op: str, rounds: int, seconds: float = BURST_S) -> dict[str, float]:
    """Seconds of one operation of each side: median of its rounds, each by the median of its operations."""
    took: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds):
        turn = number % len(sides)
        for side in [*sides[turn:], *sides[:turn]]:
            took[side.name].append(statistics.median(side.burst(op, seconds)))
    return {name: statistics.median(times) for name, times in took.items()}

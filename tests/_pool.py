"""Parts of an engine that pools, for the pool's tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from kvferry.pool import GroupMemory, GroupShape, PoolIdentity, PoolKeys

BLOCK = 4  # tokens
LAYERS = 2
ROW = 24  # bytes of a block of one layer


def identity(**changes: object) -> PoolIdentity:
    values = {
        "model": "m",
        "revision": "r",
        "dtype": "float32",
        "ranks": 1,
        "layouts": ("HND",),
        "hashing": "sha256",
    }
    return PoolIdentity(**{**values, **changes})


def keys(*shapes: GroupShape, **changes: object) -> PoolKeys:
    groups = shapes or (GroupShape(BLOCK),)
    return PoolKeys(identity(layouts=("HND",) * len(groups), **changes), groups)


def hashes(tokens: Sequence[int], size: int = BLOCK) -> list[bytes]:
    """What an engine calls the prefixes of a prompt, one for each whole block."""
    found, parent = [], b""
    for first in range(0, len(tokens) - size + 1, size):
        parent = hashlib.sha256(parent + repr(list(tokens[first : first + size])).encode()).digest()
        found.append(parent)
    return found


class Memory:
    """A KV cache of one group: `LAYERS` arrays of blocks."""

    def __init__(self, blocks: int) -> None:
        self.layers = [np.zeros((blocks, ROW), np.uint8) for _ in range(LAYERS)]
        self.group = GroupMemory(
            np.array([layer.ctypes.data for layer in self.layers], np.uint64),
            np.full(LAYERS, ROW, np.uint64),
            np.full(LAYERS, ROW, np.uint64),
            blocks,
        )

    def write(self, block: int, data: bytes) -> None:
        """Fill a block with bytes that stand for `data`."""
        for number, layer in enumerate(self.layers):
            layer[block] = np.frombuffer(content(data, number), np.uint8)

    def read(self, block: int) -> bytes:
        return b"".join(layer[block].tobytes() for layer in self.layers)


def content(data: bytes, layer: int) -> bytes:
    return hashlib.sha256(data + bytes([layer])).digest()[:ROW]


def value(data: bytes) -> bytes:
    """What `Memory.read` returns after `write`."""
    return b"".join(content(data, number) for number in range(LAYERS))


class Later:
    """Runs jobs when told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.closed = False

    def submit(self, job: Callable[[], None]) -> bool:
        if not self.closed:
            self.jobs.append(job)
        return not self.closed

    def run(self, index: int = 0) -> None:
        self.jobs.pop(index)()

    def run_all(self) -> None:
        while self.jobs:
            self.run()


def at_once(job: Callable[[], None]) -> bool:
    job()
    return True

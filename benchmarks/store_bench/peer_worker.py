"""Redis or Mooncake's store as one side: puts and gets in bursts, in an environment of its own.

Speaks JSON lines on stdin and stdout; ends when its input is closed. Run as a module by peers.py, with the
name of the store, where it is, and how many bytes this process offers to it (clients of Mooncake hold the
values). Each operation takes the next part of the memory, as our side does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Protocol

import numpy as np
from benchmarks.transfer_bench.packages import package_of

LENGTH = 64 << 20
MAX_SETS = 256


class Adapter(Protocol):
    """A store's calls, of one value or many; keys are text. Errors are raised."""

    def prepare(self, size: int, count: int) -> None:
        """Take note of where values lie."""

    def put(self, keys: list[str], first: int) -> None:
        """Values from number `first` on."""

    def get(self, keys: list[str], first: int) -> None: ...
    def remove(self, keys: list[str]) -> None: ...


class Redis:
    """With hiredis; many values are one pipeline or MGET."""

    package = "redis"

    def __init__(self, where: str, memory: np.ndarray, _other: np.ndarray, _offered: int) -> None:
        import redis

        host, _colon, port = where.partition(":")
        self._redis = redis.Redis(unix_socket_path=where) if where[0] == "/" else redis.Redis(host, int(port))
        self._redis.ping()
        self._memory = memory
        self._values: list[memoryview] = []

    def prepare(self, size: int, count: int) -> None:
        self._values = [memoryview(self._memory)[i * size : (i + 1) * size] for i in range(count)]

    def put(self, keys: list[str], first: int) -> None:
        if len(keys) == 1:
            self._redis.set(keys[0], self._values[first])
            return
        pipeline = self._redis.pipeline(transaction=False)
        for key, value in zip(keys, self._values[first : first + len(keys)], strict=True):
            pipeline.set(key, value)
        pipeline.execute()

    def get(self, keys: list[str], first: int) -> None:
        found = [self._redis.get(keys[0])] if len(keys) == 1 else self._redis.mget(keys)
        if any(len(one) != len(self._values[first]) for one in found):
            raise ValueError("Redis lost a value")

    def remove(self, keys: list[str]) -> None:
        self._redis.delete(*keys)


class Mooncake:
    """With registered memory, and the calls that copy least."""

    package = "mooncake-transfer-engine-non-cuda"

    def __init__(self, where: str, memory: np.ndarray, other: np.ndarray, offered: int) -> None:
        from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]

        self._store = MooncakeDistributedStore()
        if self._store.setup("127.0.0.1", "P2PHANDSHAKE", offered, LENGTH, "tcp", "", where) != 0:
            raise RuntimeError("Mooncake: setup failed")
        self._arrays = (memory, other)
        for array in self._arrays:
            if self._store.register_buffer(array.ctypes.data, array.nbytes) != 0:
                raise RuntimeError("Mooncake: register_buffer failed")
        self._places: list[list[int]] = [[], []]
        self._sizes: list[int] = []

    def prepare(self, size: int, count: int) -> None:
        self._sizes = [size] * count
        self._places = [[array.ctypes.data + i * size for i in range(count)] for array in self._arrays]

    def put(self, keys: list[str], first: int) -> None:
        source, sizes = self._places[0][first : first + len(keys)], self._sizes[: len(keys)]
        if len(keys) == 1:
            failed = self._store.put_from(keys[0], source[0], sizes[0]) != 0
        else:
            failed = any(self._store.batch_put_from(keys, source, sizes))
        if failed:
            raise RuntimeError("Mooncake: a put failed")

    def get(self, keys: list[str], first: int) -> None:
        target, sizes = self._places[1][first : first + len(keys)], self._sizes[: len(keys)]
        if len(keys) == 1:
            found = [self._store.get_into(keys[0], target[0], sizes[0])]
        else:
            found = self._store.batch_get_into(keys, target, sizes)
        if found != sizes:
            raise RuntimeError("Mooncake: a get failed")

    def remove(self, keys: list[str]) -> None:
        self._store.batch_remove(keys)


class Worker:
    """Takes the times of one adapter."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._count = 0
        self._next = 0
        self._turn = 0
        self._kept: list[list[str]] = []  # a set of keys for each part of the memory

    def prepare(self, size: int, count: int) -> None:
        """Puts the values that are got."""
        for keys in self._kept:
            self._adapter.remove(keys)
        sets = min(LENGTH // (size * count), MAX_SETS)
        self._adapter.prepare(size, count * sets)
        self._count = count
        self._kept = [self._fresh() for _ in range(sets)]
        for number, keys in enumerate(self._kept):
            self._adapter.put(keys, number * count)
        self._adapter.get(self._kept[0], 0)

    def burst(self, op: str, seconds: float) -> list[float]:
        """Seconds of each operation, for about so long in all; what it put is removed untimed."""
        took: list[float] = []
        until = time.perf_counter() + seconds
        while not took or time.perf_counter() < until:
            self._turn = (self._turn + 1) % len(self._kept)
            keys = self._kept[self._turn] if op == "get" else self._fresh()
            call = self._adapter.get if op == "get" else self._adapter.put
            started = time.perf_counter()
            call(keys, self._turn * self._count)
            took.append(time.perf_counter() - started)
            if op == "put":
                self._adapter.remove(keys)
        return took

    def _fresh(self) -> list[str]:
        self._next += self._count
        return [f"key-{number}" for number in range(self._next - self._count, self._next)]


def main() -> None:
    kind, where, offered = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print must not come between the answers

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        memory = np.random.default_rng(1).integers(0, 256, LENGTH, dtype=np.uint8)
        adapters: dict[str, Any] = {"redis": Redis, "mooncake": Mooncake}
        adapter = adapters[kind](where, memory, np.ones(LENGTH, dtype=np.uint8), int(offered))
        worker = Worker(adapter)
        tell({"package": package_of(adapter.package)})
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "prepare":
                worker.prepare(request["size"], request["count"])
                tell({})
            else:
                tell({"took_s": worker.burst(request["op"], request["seconds"])})
    except Exception as error:  # noqa: BLE001  (told to the benchmark, which reports it)
        tell({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)  # some of their threads never end


if __name__ == "__main__":
    main()

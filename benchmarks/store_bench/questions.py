"""Asking, viewing, small values, and how long other threads of Python stand still."""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from benchmarks.store_bench.sides import burst_of
from benchmarks.transfer_bench.rows import Row

from kvferry.store import Store

CHAIN = 6000  # blocks of a long prompt
KEY_BYTES = 32
SMALL = 64  # bytes
TRIES = 3
BURST_S = 0.05


def median_us(call: Callable[[], object], seconds: float = BURST_S) -> float:
    """Of one call, in microseconds."""
    call()
    return statistics.median(burst_of(call, seconds)) * 1e6


def put_chain(store: Store, seed: int = 2) -> np.ndarray:
    """Store a chain of small values; return its keys as an array."""
    keys = np.random.default_rng(seed).integers(0, 256, (CHAIN, KEY_BYTES), dtype=np.uint8)
    value = bytes(SMALL)
    for result in store.put_many(keys, [value] * CHAIN, chain=True):
        if result.error is not None:
            raise result.error
    return keys


def asking(store: Store) -> Iterator[Row]:
    """A client on the node's host."""
    keys = put_chain(store)
    if store.match_prefix(keys) != CHAIN or not store.exists_many(keys).all():
        raise ValueError("a key is missing")
    took_ms = median_us(lambda: store.match_prefix(keys)) / 1e3
    yield Row("match_prefix", f"{CHAIN} keys, same host", took_ms, "ms", target="< 1")
    names = [bytes(key) for key in keys]
    for form, argument in (("array", keys), ("list", names)):
        took_us = median_us(lambda: store.exists_many(argument))  # noqa: B023  (called at once)
        yield Row(
            "exists_many", f"{CHAIN} keys in a {form}, same host", CHAIN / took_us, "M keys/s", target=">= 2"
        )


def viewing(store: Store, source: np.ndarray) -> Iterator[Row]:
    """Pinning and seeing a value, whatever its size."""
    for size in (SMALL, 64 << 10, 1 << 20, 16 << 20):
        key = f"view-{size}"
        store.put(key, source[:size])
        target = "< 5"
        yield Row("view", f"{size} B", median_us(lambda: store.view(key).close()), "us p50", target=target)  # noqa: B023
        store.remove(key)


def over_nodes(store: Store, other: Store, count: int) -> Iterator[Row]:
    """Ask a node for a chain that another one holds; entries of the directory are spread over all."""
    keys = put_chain(other, seed=count)
    until = time.monotonic() + 30
    while store.match_prefix(keys) != CHAIN:  # until all directories know
        if time.monotonic() > until:
            raise TimeoutError("the nodes do not find the chain")
        time.sleep(0.05)
    took_ms = median_us(lambda: store.match_prefix(keys)) / 1e3
    target = "< 3" if count == 3 else ""
    yield Row("match_prefix", f"{CHAIN} keys, held elsewhere, {count} nodes", took_ms, "ms", target=target)


def longest_gap_ms(call: Callable[[], object]) -> float:
    """How long another thread of Python got no turn while it ran.

    The least of a few tries, as the machine also stops threads by itself.
    """
    gaps = []
    for _ in range(TRIES):
        ended, longest = threading.Event(), 0.0

        def tick(ended: threading.Event = ended) -> None:
            nonlocal longest
            before = time.perf_counter()
            while not ended.is_set():
                now = time.perf_counter()
                longest = max(longest, now - before)
                before = now

        thread = threading.Thread(target=tick)
        thread.start()
        time.sleep(0.01)
        call()
        ended.set()
        thread.join()
        gaps.append(longest * 1e3)
    return min(gaps)


def stalls(store: Store, source: np.ndarray, target: np.ndarray) -> Iterator[Row]:
    """Calls that take long, beside a thread that only looks at the clock."""
    size, count = 64 << 10, 512
    values, targets = (
        [memory[i * size : (i + 1) * size] for i in range(count)] for memory in (source, target)
    )
    fresh = itertools.count()
    keys = [f"gap-{number}" for number in range(count)]
    store.put_many(keys, values)
    chain = put_chain(store, seed=5)
    store.put("large", source)
    calls: dict[str, Callable[[], object]] = {
        "put_many": lambda: store.put_many([f"gap-{next(fresh)}-{key}" for key in keys], values),
        "get_many_into": lambda: store.get_many_into(keys, targets),
        f"get_into of {len(source) >> 20} MiB": lambda: store.get_into("large", target),
        "match_prefix": lambda: store.match_prefix(chain),
        "exists_many": lambda: store.exists_many(chain),
        "scan": lambda: sum(1 for _ in store.scan("gap")),
        "remove_many": lambda: store.remove_many(keys),
    }
    sys.setswitchinterval(1e-4)
    try:
        for name, call in calls.items():
            yield Row("another thread stands still", name, longest_gap_ms(call), "ms at most", target="< 10")
    finally:
        sys.setswitchinterval(5e-3)
    store.remove_many(["large", *keys])

"""What an operation costs with more keys, and with more nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np
from benchmarks.store_bench.cluster import Nodes
from benchmarks.store_bench.questions import SMALL, median_us, over_nodes
from benchmarks.transfer_bench.rows import Row

from kvferry.store import Store

BATCH = 1000
KEYS = (10_000, 100_000, 1_000_000)
LONG_KEYS = 2_000_000
NODES = (1, 3, 6)


def _keys(first: int, count: int) -> list[bytes]:
    return [b"growth-%08d" % number for number in range(first, first + count)]


def _fill(store: Store, first: int, last: int) -> float:
    """Microseconds for each key put."""
    values = [bytes(SMALL)] * BATCH
    took_s = 0.0
    for at in range(first, last, BATCH):
        keys = _keys(at, BATCH)
        started = time.perf_counter()
        results = store.put_many(keys, values)
        took_s += time.perf_counter() - started
        for result in results:
            if result.error is not None:
                raise result.error
    return took_s * 1e6 / (last - first)


def _costs(store: Store, held: int, case: str) -> Iterator[Row]:
    """Of random ones among the keys that are held."""
    chosen = np.random.default_rng(held).integers(0, held, BATCH)
    keys = [b"growth-%08d" % number for number in chosen.tolist()]
    target = bytearray(SMALL * BATCH)
    places = [memoryview(target)[i * SMALL : (i + 1) * SMALL] for i in range(BATCH)]
    yield Row("growth: get", case, median_us(lambda: store.get_many_into(keys, places)) / BATCH, "us per key")
    yield Row("growth: exists", case, median_us(lambda: store.exists_many(keys)) / BATCH, "us per key")
    yield Row("growth: view", case, median_us(lambda: store.view(keys[0]).close()), "us p50")


def with_keys(nodes: Nodes, long: bool) -> Iterator[Row]:
    """One node, more and more keys of 64 bytes; also what it needs for each besides the value."""
    with contextlib.ExitStack() as stack:
        counts = (*KEYS, LONG_KEYS) if long else KEYS
        room = {"KVFERRY_STORE_MAX_OBJECTS": str(counts[-1])}
        node = nodes.start_one("--dram", "1GiB", environ=room, stack=stack)
        store = nodes.open(node, stack=stack)
        held = 0
        for count in counts:
            case = f"{count} keys"
            yield Row("growth: put", case, _fill(store, held, count), "us per key")
            held = count
            if int(store.exists_many(_keys(0, BATCH)).sum()) != BATCH:
                raise ValueError("the node gave up keys that have room")
            yield from _costs(store, held, case)
        each = store.node_stats().metadata_bytes / held
        yield Row("growth: memory besides values", f"{held} keys", each, "bytes per key", target="< 200")


def with_nodes(nodes: Nodes) -> Iterator[Row]:
    """Several nodes on this machine: a client of one, objects of another."""
    for count in NODES:
        case = f"{count} nodes"
        with contextlib.ExitStack() as stack:
            cluster = nodes.start(count, "--dram", "64MiB", stack=stack)
            near, far = (nodes.open(node, stack=stack) for node in (cluster[0], cluster[-1]))
            yield Row("growth: put", case, _fill(far, 0, 10 * BATCH), "us per key")
            if count > 1:
                yield from over_nodes(near, far, count)
            yield from _costs(near, 10 * BATCH, case)

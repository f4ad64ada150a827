"""Cases 6.1, 6.3 and 6.4: full pools, odd and huge sizes, very many keys."""

from __future__ import annotations

import hashlib
import mmap
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.faults.store.values import content

from kvferry.errors import OutOfRangeError
from kvferry.store import Store
from kvferry.testing.nodes import NodeChild

MIB = 1 << 20
BYTES_PER_KEY = 200  # as docs/store-node.md has it


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeChild]:
    with NodeChild(tmp_path, "--dram", "64MiB") as child:
        yield child


def test_a_full_pool_takes_more_and_keeps_what_is_pinned(node: NodeChild, extent) -> None:
    names = [f"full/{number}/{MIB}" for number in range(extent.times(256, 1024))]
    with node.open() as store:
        store.put(names[0], content(names[0]))
        with store.view(names[0]) as kept:
            for name in names[1:]:
                store.put(name, content(name))
                store.exists_many(names)  # looking pins nothing
            assert bytes(kept.data) == content(names[0])
        there = [name for name in names if store.exists(name)]
        assert 32 <= len(there) <= 64
        assert all(store.get(name) == content(name) for name in there)
        used = store.node_stats()
        assert used.dram_used <= used.dram_bytes


def test_more_replicas_than_nodes_evict_nothing(node: NodeChild) -> None:
    with node.open() as store:
        store.put("here", b"x" * MIB)
        assert store.put("wanted twice", b"y" * MIB, replicas=2).replicas == 1
        assert store.exists_many(["here", "wanted twice"]).all()


@pytest.mark.parametrize("size", [0, 1, 4095, 16 * MIB + 1])
def test_odd_sizes_come_back_exactly(node: NodeChild, size: int) -> None:
    key = f"size/odd/{size}"
    with node.open() as store:
        store.put(key, content(key))
        assert store.get(key) == content(key)


def test_what_is_larger_than_the_pool_is_refused(node: NodeChild) -> None:
    with node.open() as store:
        store.put("small", b"x")
        with pytest.raises(OutOfRangeError, match=r"67108864 bytes; give the node more \(store.dram\)"):
            store.put("huge", bytes(65 * MIB))
        assert store.get("small") == b"x"


def test_lengths_past_two_gib_are_whole(tmp_path: Path, extent) -> None:
    """A sparse value, with marks where a length of 31 or 32 bits would be cut."""
    size = 2048 * MIB + 1
    if not extent.long:
        size = 192 * MIB + 1  # the whole one needs 6 GiB
    with mmap.mmap(-1, size) as value, NodeChild(tmp_path, "--dram", f"{size // MIB + 64}MiB") as node:
        marks = {0: b"first", size // 2: b"middle", size - 5: b"final"}
        for offset, mark in marks.items():
            value[offset : offset + len(mark)] = mark
        with node.open(timeout_s=300.0) as store:
            source = np.frombuffer(value, dtype=np.uint8)
            assert store.put("large", source).created
            assert store.sizes(["large"]) == [size]
            for offset, mark in marks.items():
                target = bytearray(len(mark))
                store.get_range("large", offset, target)
                assert bytes(target) == mark
            with store.view("large") as view:
                assert view.nbytes == size
            if psutil.virtual_memory().available > 2 * size:
                with mmap.mmap(-1, size) as target:
                    assert store.get_into("large", target) == size
                    assert all(target[at : at + len(mark)] == mark for at, mark in marks.items())
                    assert hashlib.blake2b(target).digest() == hashlib.blake2b(value).digest()
        del source


def odd_keys(count: int) -> set[bytes]:
    """Keys of any bytes, some of which begin as others do."""
    rng = random.Random(63)
    keys = [rng.randbytes(rng.choice((1, 2, 3, 16, 255, 256, 257, 1023, 1024))) for _ in range(count)]
    ends = (b"", b"\0", b"\xff", b"/")
    cut = [key[: rng.randrange(1, len(key) + 1)] + rng.choice(ends) for key in keys[:500]]
    return {*keys, *(key[:1024] for key in cut), b"\0" * 1024, b"\xff" * 1024, b"\0", b"\0\0"}


def test_keys_have_any_bytes_up_to_1_kib(node: NodeChild, extent) -> None:
    """Many at once, and each found, listed in order, and removed by itself."""
    ordered = sorted(odd_keys(extent.times(1500, 50_000)))
    values = [zlib.crc32(key).to_bytes(4, "big") + key[:50] for key in ordered]
    with node.open(timeout_s=60.0) as store:
        assert all(result.created for result in store.put_many(ordered, values))
        targets = [bytearray(len(value)) for value in values]
        assert all(result.error is None for result in store.get_many_into(ordered, targets))
        assert targets == values
        assert [info.key for info in store.scan()] == ordered
        begin = ordered[len(ordered) // 2][:1]
        assert [info.key for info in store.scan(begin)] == [key for key in ordered if key.startswith(begin)]
        gone = ordered[::3]
        assert store.remove_many(gone) == [None] * len(gone)
        assert store.exists_many(ordered).tolist() == [index % 3 != 0 for index in range(len(ordered))]


def put_range(store: Store, first: int, count: int) -> None:
    for start in range(first, first + count, 5000):
        keys = [f"many keys {number:09}" for number in range(start, start + 5000)]
        assert all(result.error is None for result in store.put_many(keys, [key.encode() for key in keys]))


def test_very_many_keys_in_flat_memory(tmp_path: Path, extent) -> None:
    """Twice as many are put as may stay, and then again: what they take besides their values is the same."""
    kept = extent.times(50_000, 2_000_000)
    environ = {"KVFERRY_STORE_MAX_OBJECTS": str(kept)}
    with NodeChild(tmp_path, "--dram", "512MiB", environ=environ) as node, node.open(timeout_s=60.0) as store:
        put_range(store, 0, 2 * kept)
        process = psutil.Process(node.process.pid)
        stats, before = store.node_stats(), process.memory_info().rss
        assert 0.8 * kept <= stats.objects <= kept
        put_range(store, 2 * kept, 2 * kept)
        stats, after = store.node_stats(), process.memory_info().rss
        assert stats.objects <= kept
        print(f"{stats.metadata_bytes / stats.objects:.0f} bytes per key of {stats.objects}")
        assert stats.metadata_bytes < BYTES_PER_KEY * kept
        assert after < before + max(32 * MIB, before // 5)

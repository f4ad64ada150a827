"""The store's calls, as a program sees them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
from tests.unit.store.conftest import settings

from kvferry.errors import (
    ConflictError,
    InvalidArgumentError,
    KVFerryError,
    NotFoundError,
    OutOfRangeError,
    ResourceExhaustedError,
)
from kvferry.store import Store, open_store
from kvferry.testing.waiting import wait_until

SIZES = [0, 1, 4095, 4096, 4097, 65536, (1 << 20) + 1, 5_000_000]


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed + size).integers(0, 256, size, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_what_is_put_is_got(store: Store, size: int) -> None:
    value = content(size)
    result = store.put(b"key", value)
    assert (result.created, result.replicas) == (True, 1)
    assert store.get(b"key") == value
    assert store.exists(b"key")
    assert store.sizes([b"key"]) == [size]
    with store.view(b"key") as view:
        assert view.nbytes == size
        assert bytes(view.data) == value


class Addresses(NamedTuple):
    """What callers outside this package pass as runs: the same fields, another class."""

    addresses: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray


def test_runs_may_be_of_any_class_that_has_their_fields(store: Store) -> None:
    source, target = np.arange(8192, dtype=np.uint8), np.zeros(8192, dtype=np.uint8)

    def runs(memory: np.ndarray) -> Addresses:
        halves = np.array([0, 4096], dtype=np.uint64) + np.uint64(memory.ctypes.data)
        return Addresses(halves, np.full(2, 4096, dtype=np.uint64), np.array([2], dtype=np.int64))

    [put] = store.put_runs([b"key"], runs(source))  # type: ignore[arg-type]
    assert put.created
    [got] = store.get_runs_into([b"key"], runs(target))  # type: ignore[arg-type]
    assert (got.error, got.bytes) == (None, 8192)
    assert np.array_equal(source, target)


def test_arrays_that_lie_in_another_order_are_refused(store: Store) -> None:
    turned = np.arange(12, dtype=np.float32).reshape(3, 4).T
    store.put("straight", np.ascontiguousarray(turned))
    with pytest.raises(InvalidArgumentError, match="C order"):
        store.put("turned", turned)
    with pytest.raises(InvalidArgumentError, match="C order"):
        store.get_into("straight", turned)


def test_text_counts_as_utf_8(store: Store) -> None:
    store.put("schlüssel", b"1")
    assert store.get("schlüssel".encode()) == b"1"


@pytest.mark.parametrize("key", [b"\0", b"a/b\0c", bytes(range(256)), b"k" * 1024])
def test_keys_have_any_bytes(store: Store, key: bytes) -> None:
    store.put(key, b"value")
    assert store.get(key) == b"value"
    assert [info.key for info in store.scan()] == [key]


@pytest.mark.parametrize("key", [b"", b"k" * 1025])
def test_keys_of_other_lengths_are_refused(store: Store, key: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="1 to 1024 bytes"):
        store.put(key, b"value")
    with pytest.raises(InvalidArgumentError):
        store.exists(key)


def test_absence_is_no_error_where_it_is_an_answer(store: Store) -> None:
    assert store.get(b"none") is None
    assert not store.exists(b"none")
    assert store.sizes([b"none"]) == [None]
    assert store.match_prefix([b"none"]) == 0
    store.remove(b"none")
    with pytest.raises(NotFoundError):
        store.get_into(b"none", bytearray(10))
    with pytest.raises(NotFoundError):
        store.view(b"none")


@pytest.mark.parametrize("size", [10, 100_000])
def test_objects_are_written_once(store: Store, size: int) -> None:
    store.put(b"key", content(size, 1))
    again = store.put(b"key", content(size, 1))
    assert again.error is None
    assert not again.created
    with pytest.raises(ConflictError, match="other bytes"):
        store.put(b"key", content(size, 2))
    with pytest.raises(ConflictError):
        store.put(b"key", content(size + 1, 1))
    assert store.get(b"key") == content(size, 1)
    store.remove(b"key")
    assert store.put(b"key", content(size, 2)).created


def test_a_batch_has_a_result_for_each_key_in_order(store: Store) -> None:
    """Field case 4.9: missing ones, one too big, one empty, duplicates, among good ones."""
    values = {b"a": b"1", b"b": content(9000), b"empty": b"", b"big": bytes(64 << 20), b"c": content(1 << 20)}
    keys = [b"a", b"b", b"empty", b"big", b"c", b"a"]
    results = store.put_many(keys, [values[key] for key in keys])
    assert [type(result.error) for result in results] == [
        type(None), type(None), type(None), OutOfRangeError, type(None), type(None),
    ]  # fmt: skip
    assert [result.created for result in results] == [True, True, True, False, True, False]
    asked = [b"c", b"none", b"empty", b"big", b"a", b"b", b"a", b"short"]
    store.put(b"short", content(500))
    targets = [bytearray(2 << 20) for _ in asked]
    targets[-1] = bytearray(499)
    got = store.get_many_into(asked, targets)
    absent = [isinstance(result.error, NotFoundError) for result in got]
    assert absent == [False, True, False, True, False, False, False, False]
    assert [result.error for result in got if not result.error] == [None] * 5
    assert isinstance(got[-1].error, OutOfRangeError)
    assert got[-1].bytes == 500
    for key, target, result in zip(asked, targets, got, strict=True):
        if result.error is None:
            assert bytes(target[: result.bytes]) == values[key]


def test_one_object_from_many_pieces(store: Store) -> None:
    pieces = [content(size, 3) for size in (10, 0, 70_000, 4096, 1)]
    store.put(b"key", pieces)
    joined = b"".join(pieces)
    assert store.get(b"key") == joined
    targets = [bytearray(50_000), bytearray(5), np.zeros(len(joined), dtype=np.uint8)]
    assert store.get_into(b"key", targets) == len(joined)
    assert b"".join(bytes(target) for target in targets)[: len(joined)] == joined


@pytest.mark.parametrize("size", [100, 300_000])
def test_parts_of_an_object(store: Store, size: int) -> None:
    value = content(size)
    store.put(b"key", value)
    for offset, length in ((0, size), (1, 50), (size - 1, 1), (size // 2, size // 4)):
        target = bytearray(length)
        assert store.get_range(b"key", offset, target) == length
        assert bytes(target) == value[offset : offset + length]
    with pytest.raises(OutOfRangeError, match="not all in an object of"):
        store.get_range(b"key", size - 1, bytearray(2))


def test_arrays_of_keys(store: Store) -> None:
    keys = np.random.default_rng(1).integers(0, 256, (500, 16), dtype=np.uint8)
    store.put_many(keys, [key.tobytes() for key in keys], chain=True)
    assert store.exists_many(keys).all()
    assert store.match_prefix(keys) == 500
    store.remove(keys[300].tobytes())
    assert store.match_prefix(keys) == 300
    assert store.exists_many(keys).sum() == 499
    assert store.match_prefix(keys[301:]) == 199


def test_keys_must_be_many(store: Store) -> None:
    with pytest.raises(InvalidArgumentError, match="not one key"):
        store.exists_many(b"key")
    with pytest.raises(InvalidArgumentError, match="must be bytes"):
        store._native.exists([1], 1.0)
    with pytest.raises(InvalidArgumentError, match="uint8"):
        store.exists_many(np.zeros((2, 2)))


def test_tenants_do_not_meet(store: Store) -> None:
    with open_store(settings(tenant="other"), node=store._owned.endpoint) as other:
        other.put(b"key", b"theirs")
        store.put(b"key", b"ours")
        assert other.get(b"key") == b"theirs"
        assert store.get(b"key") == b"ours"


def test_objects_expire(store: Store) -> None:
    store.put(b"soon", b"1", ttl_s=0.2)
    store.put(b"later", b"2", ttl_s=3600)
    wait_until(lambda: not store.exists(b"soon"))
    assert store.get(b"soon") is None
    [info] = store.scan()
    assert info.key == b"later"
    assert 3500 < info.expires_in_s <= 3600
    assert store.put(b"soon", b"other bytes").created


def test_tags(store: Store) -> None:
    for i in range(20):
        store.put(f"k{i}", b"x", tags=["even" if i % 2 == 0 else "odd", "all"])
    assert store.remove_tag("even") == 10
    assert sorted(info.key for info in store.scan()) == sorted(f"k{i}".encode() for i in range(1, 20, 2))
    assert store.remove_tag("none") == 0
    with pytest.raises(InvalidArgumentError, match="at most 16 tags"):
        store.put(b"key", b"x", tags=[str(i) for i in range(17)])


def test_a_scan_is_sorted_and_whole(store: Store) -> None:
    keys = [f"{i:05}".encode() for i in range(2500)]
    store.put_many(keys, [b"x"] * len(keys))
    assert [info.key for info in store.scan()] == keys
    assert [info.key for info in store.scan("012")] == keys[1200:1300]


def test_a_view_keeps_its_bytes(store: Store) -> None:
    """Field case 4.1 on one host: what is read in place is neither evicted nor overwritten."""
    value = content(1 << 20)
    store.put(b"kept", value)
    view = store.view(b"kept")
    data = np.frombuffer(view.data, dtype=np.uint8)
    view.close()  # the array still holds the pin
    for i in range(100):
        store.put(f"other {i}", content(1 << 20, i + 1))
    assert data.tobytes() == value
    store.remove(b"kept")
    assert store.get(b"kept") is None
    for i in range(100, 150):
        store.put(f"other {i}", content(1 << 20, i + 1))
    assert data.tobytes() == value
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


def test_a_full_pool_takes_more(store: Store) -> None:
    """Field case 6.1: what was only looked at is no pin."""
    keys = [f"k{i}" for i in range(200)]
    for i, key in enumerate(keys):
        store.put(key, content(1 << 20, i))
        store.exists_many(keys)
        store.match_prefix(keys)
    there = store.exists_many(keys)
    assert 10 < there.sum() < 32
    for i, key in enumerate(keys):
        value = store.get(key)
        assert value is None or value == content(1 << 20, i)


def test_all_pinned_is_an_error_that_passes(store: Store) -> None:
    views = []
    error = None
    while error is None and len(views) < 40:
        key = f"k{len(views)}"
        error = store.put_many([key], [content(1 << 20, len(views))], timeout_s=2)[0].error
        if error is None:
            views.append(store.view(key))
    assert isinstance(error, ResourceExhaustedError)
    assert len(views) > 20
    for i, view in enumerate(views):
        assert bytes(view.data) == content(1 << 20, i)
        view.close()
    store.put(b"new", content(1 << 20))


def test_racing_writers_of_one_key(store: Store) -> None:
    """Field case 4.8: the same bytes are fine for all, of different ones the first win."""
    outcomes: list[str] = []
    lock = threading.Lock()

    def write(who: int) -> None:
        for round_ in range(30):
            for key, seed in ((f"same {round_}", 0), (f"different {round_}", who + 1)):
                try:
                    outcome = "created" if store.put(key, content(20_000, seed)).created else "there"
                except ConflictError:
                    outcome = "conflict"
                with lock:
                    outcomes.append(f"{key.split()[0]} {outcome}")

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("same created") == 30
    assert outcomes.count("same there") == 90
    assert outcomes.count("different created") == 30
    assert outcomes.count("different conflict") == 90


def test_awaiting(store: Store) -> None:
    async def work() -> None:
        results = await asyncio.gather(*(store.aio.put(f"k{i}", content(i)) for i in range(100)))
        assert all(result.created for result in results)
        assert await store.aio.get("k77") == content(77)
        assert await store.aio.match_prefix([f"k{i}" for i in range(120)]) == 100
        assert [info.key async for info in store.aio.scan("k9")][:2] == [b"k9", b"k90"]
        with await store.aio.view("k50") as view:
            assert bytes(view.data) == content(50)

    asyncio.run(work())


def test_others_run_while_a_call_waits(store: Store) -> None:
    """Field case 5.2: the interpreter lock is given up while bytes are copied."""
    big = np.zeros(20 << 20, dtype=np.uint8)
    done = threading.Event()
    longest = 0.0

    def count() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not done.is_set():
            now = time.perf_counter()
            longest = max(longest, now - last)
            last = now

    counter = threading.Thread(target=count)
    counter.start()
    switches = 0
    for _ in range(10):
        store.put(b"big", big)
        store.get_into(b"big", big)
        store.remove(b"big")
        switches += 1
    done.set()
    counter.join()
    assert switches == 10
    assert longest < 5  # held for all ten rounds it would be as long as these


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    with pytest.raises(KVFerryError, match="closed"):
        store.put(b"key", b"x")
    store.close()


def test_devices_are_refused(store: Store) -> None:
    class OnDevice:
        __cuda_array_interface__ = {"data": (4096, False), "shape": (4,), "typestr": "|u1", "version": 3}

    with pytest.raises(InvalidArgumentError, match="cuda"):
        store.put(b"key", OnDevice())
    with pytest.raises(InvalidArgumentError, match="read-only"):
        store.get_into(b"key", b"constant")


def test_of_equal_keys_in_one_put_the_first_is_stored(store: Store) -> None:
    large = [bytes([number]) * 200_000 for number in range(4)]
    for values in (large, [value[:100] for value in large]):
        keys = [f"{len(values[0])}-{number}" for number in (0, 1, 0, 1)]
        results = store.put_many(keys, values)
        assert [result.error is None for result in results] == [True, True, False, False]
        assert [store.get(key) for key in keys] == [values[0], values[1], values[0], values[1]]


def test_many_parts_go_into_memory_that_holds_only_a_few(store: Store) -> None:
    values = [bytes([number]) * (8 << 20) for number in range(12)]  # three times the memory
    keys = [f"part-{number}" for number in range(12)]
    assert all(result.error is None for result in store.put_many(keys, values))
    assert store.get(keys[-1]) == values[-1]
    for key, value in zip(keys, values, strict=True):
        assert store.get(key) in (None, value)


def test_values_may_be_any_buffers(store: Store) -> None:
    array = np.arange(600, dtype=np.int32)
    halves = [array[:300].copy(), memoryview(array)[300:]]
    values = [array.tobytes(), bytearray(array), array, halves, tuple(halves), array.reshape(20, 30), b""]
    keys = [f"buffer-{number}" for number in range(len(values))]
    assert all(result.error is None for result in store.put_many(keys, values))
    assert [store.get(key) for key in keys] == [array.tobytes()] * 6 + [b""]


@pytest.mark.parametrize("value", [np.array([None, 1]), np.arange(10)[::2], "text", 7, [b"1", None]])
def test_what_has_no_plain_memory_is_refused(store: Store, value: object) -> None:
    with pytest.raises(InvalidArgumentError):
        store.put(b"key", value)
    assert not store.exists(b"key")


def test_memory_that_is_read_only_is_not_read_into(store: Store) -> None:
    store.put(b"key", b"value")
    for target in (b"12345", memoryview(b"12345"), [bytearray(2), b"123"]):
        with pytest.raises(InvalidArgumentError, match="read-only"):
            store.get_into(b"key", target)


def test_buffers_are_held_while_a_call_runs() -> None:
    from kvferry import _native

    target = bytearray(100)
    held = _native.BufferRuns.find([target, b"1"], False)
    assert held is not None
    with pytest.raises(BufferError):
        target.clear()
    del held
    target.clear()

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kvferry.store import Store
from kvferry.testing.waiting import wait_until
from unit.lmcache_connector.fake_lmcache import BFLOAT, HALF, SHAPE, Chunk, L1MemoryDesc, ObjectKey

pytestmark = pytest.mark.usefixtures("lmcache")

WAIT_S = 20.0


@contextmanager
def adapter(settings: dict[str, Any], **options: Any) -> Iterator[Any]:
    from kvferry_lmcache.l2 import L2Adapter

    made = L2Adapter(settings, **options)
    try:
        yield made
    finally:
        made.close()


def chunk(fill: int, dtype: Any = HALF, shape: tuple[int, ...] = SHAPE) -> Chunk:
    made = Chunk(shape, dtype)
    made.data[:] = bytes([fill]) * len(made.data)
    return made


def keys(*hashes: int, **fields: Any) -> list[ObjectKey]:
    return [ObjectKey(bytes([each]) * 8, **fields) for each in hashes]


def result(query: Any, task: int) -> Any:
    found: list[Any] = []

    def there() -> bool:
        answer = query(task)
        found.extend([] if answer is None else [answer])
        return bool(found)

    wait_until(there, WAIT_S, "the task's end")
    return found[0]


def _name(key: ObjectKey) -> str:
    from kvferry_lmcache.l2 import _name_of

    return _name_of(key)


def stored(l2: Any, names: list[ObjectKey], chunks: list[Chunk]) -> int:
    task = l2.submit_store_task(names, chunks)
    return int(result(lambda wanted: l2.pop_completed_store_tasks().get(wanted), task))


def found(l2: Any, names: list[ObjectKey]) -> list[bool]:
    bits: list[bool] = result(l2.query_lookup_and_lock_result, l2.submit_lookup_and_lock_task(names, {})).bits
    return bits


def loaded(l2: Any, names: list[ObjectKey], into: list[Chunk]) -> list[bool]:
    bits: list[bool] = result(l2.query_load_result, l2.submit_load_task(names, into)).bits
    return bits


def test_objects_are_stored_found_and_loaded_in_place(settings: dict[str, Any]) -> None:
    size = len(chunk(1).data)
    with adapter(settings) as l2:
        names = keys(1, 2)
        assert stored(l2, names, [chunk(1), chunk(2)]) == 2 * size
        assert l2.stored == dict.fromkeys(names, size)
        assert found(l2, [*names, *keys(3)]) == [True, True, False]
        targets = [chunk(0), chunk(0), chunk(0)]
        assert loaded(l2, [*keys(3), *names], targets) == [False, True, True]
        assert [each.data[0] for each in targets[1:]] == [1, 2]
        assert l2.accessed == names
        assert l2._stored.told == 1
        assert l2._found.told == 1
        assert l2._loaded.told == 1
        assert l2.query_load_result(10_000) is None
        status = l2.report_status()
        assert status["is_healthy"]
        assert (status["type"], status["saved"], status["loaded"], status["missed"]) == ("kvferry", 2, 2, 1)


def test_what_is_there_already_stays_and_counts_no_bytes(settings: dict[str, Any]) -> None:
    with adapter(settings) as l2:
        [name] = keys(1)
        size = stored(l2, [name], [chunk(1)])
        assert stored(l2, [name], [chunk(9)]) == 0
        assert l2.stored == {name: size}  # LMCache is told once
        target = chunk(0)
        assert loaded(l2, [name], [target]) == [True]
        assert target.data[0] == 1


@pytest.mark.parametrize(
    "target", [chunk(0, BFLOAT), chunk(0, HALF, (2, 1, 32, 4))], ids=["another dtype", "another shape"]
)
def test_an_object_of_another_layout_is_not_loaded(settings: dict[str, Any], target: Chunk) -> None:
    with adapter(settings) as l2:
        stored(l2, keys(1), [chunk(1)])
        assert loaded(l2, keys(1), [target]) == [False]
        assert l2.report_status()["failed|load|mismatch"] == 1


def test_keys_that_differ_in_any_field_are_different_objects(settings: dict[str, Any]) -> None:
    variants = [
        *keys(1), *keys(1, model_name="n"), *keys(1, kv_rank=1), *keys(1, object_group_id=1),
        *keys(1, cache_salt="s"), *keys(2),
    ]  # fmt: skip
    with adapter(settings) as l2:
        for index, name in enumerate(variants):
            assert found(l2, [name]) == [False]
            stored(l2, [name], [chunk(index)])
        targets = [chunk(99) for _ in variants]
        assert all(loaded(l2, variants, targets))
        assert [each.data[0] for each in targets] == list(range(len(variants)))
        with adapter({**settings, "pool.namespace": settings["pool.namespace"] + "x"}) as other:
            assert not any(found(other, variants))


def test_keys_are_listed_in_pages_and_deleted(settings: dict[str, Any]) -> None:
    size = len(chunk(1).data)
    with adapter(settings) as l2:
        mine, others = keys(1, 2, 3), keys(4, model_name="other", cache_salt="s", kv_rank=0x1F)
        stored(l2, [*mine, *others], [chunk(n) for n in range(4)])
        page = l2.list_l2_keys("m", page_size=2)
        rest = l2.list_l2_keys("m", page_size=2, cursor=page.next_page_token)
        assert [each.key.chunk_hash_hex for each in (*page.entries, *rest.entries)] == [
            key.chunk_hash.hex() for key in mine
        ]
        assert {each.size_bytes for each in page.entries} == {size}
        assert rest.next_page_token is None
        [only] = l2.list_l2_keys("other").entries
        assert (only.key.kv_rank, only.key.cache_salt) == (0x1F, "s")
        with pytest.raises(ValueError, match="page_size"):
            l2.list_l2_keys(page_size=0)
        l2.delete([*mine[:1], *keys(77)])
        assert l2.deleted == {mine[0]: size}
        assert found(l2, mine) == [False, True, True]


def test_usage_counts_what_the_store_still_has(settings: dict[str, Any], store: Store) -> None:
    size = len(chunk(1).data)
    with adapter(settings) as l2, adapter(settings) as other:
        mine = [*keys(1, 2), *keys(3, cache_salt="s")]
        stored(l2, mine, [chunk(n) for n in range(3)])
        stored(l2, mine[:1], [chunk(0)])  # there already
        stored(other, mine[:1], [chunk(0)])
        usage = l2.get_usage()
        assert (usage.total_bytes_used, usage.bytes_by_cache_salt) == (3 * size, {"": 2 * size, "s": size})
        stats = store.node_stats()
        assert usage.total_bytes_used <= stats.dram_used
        assert usage.total_capacity_bytes == stats.dram_bytes + stats.ssd_bytes == 32 << 20
        assert other.get_usage().total_bytes_used == 0
        for name in (mine[0], mine[2]):  # as the store evicts: without a word
            store.remove(l2._objects._keys([_name(name)])[0])
        wait_until(lambda: l2.get_usage().bytes_by_cache_salt == {"": size}, WAIT_S, "what is left")
        assert l2.deleted == {mine[0]: size, mine[2]: size}


def test_an_object_that_was_evicted_and_stored_again_counts_once(
    settings: dict[str, Any], store: Store
) -> None:
    size = len(chunk(1).data)
    with adapter(settings) as l2:
        [name] = keys(1)
        for _ in range(2):
            stored(l2, [name], [chunk(1)])
            store.remove(l2._objects._keys([_name(name)])[0])
        assert l2.usage.total() == size
        l2.delete([name])  # it is gone already, which LMCache did not know
        assert l2.usage.total() == 0
        assert l2.deleted == {name: size}


def test_usage_without_a_node_is_what_was_counted() -> None:
    with adapter({"store.node": "127.0.0.1:1", "pool.node": "attach"}) as l2:
        usage = l2.get_usage()
        assert (usage.total_bytes_used, usage.total_capacity_bytes) == (0, 0)


def test_l1_memory_is_registered_as_far_as_it_stays(settings: dict[str, Any]) -> None:
    arena = np.zeros(1 << 16, np.uint8)
    memory = L1MemoryDesc(int(arena.ctypes.data), arena.nbytes, stable_registration_size=1 << 15)
    with adapter(settings, l1_memory_desc=memory) as l2:
        assert stored(l2, keys(1), [chunk(1)]) > 0


def test_without_a_node_every_task_still_ends() -> None:
    with adapter({"store.node": "127.0.0.1:1", "pool.node": "attach"}) as l2:
        assert stored(l2, keys(1), [chunk(1)]) == -1
        assert found(l2, keys(1)) == [False]
        assert loaded(l2, keys(1), [chunk(0)]) == [False]
        status = l2.report_status()
        assert not status["is_healthy"]
        assert any(name.startswith("failed|load|") for name in status)


def test_a_bug_ends_a_task_as_a_failure(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with adapter(settings) as l2:
        for name in ("put", "get", "present"):
            monkeypatch.setattr(l2._objects, name, broken)
        assert stored(l2, keys(1), [chunk(1)]) == -1
        assert found(l2, keys(1)) == [False]
        assert loaded(l2, keys(1), [chunk(0)]) == [False]


def test_closing_waits_for_what_writes_into_l1(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with adapter(settings) as l2:
        stored(l2, keys(1), [chunk(1)])
        entered, leave, left = threading.Event(), threading.Event(), threading.Event()
        read = l2._objects.get

        def slow(*arguments: Any) -> Any:
            entered.set()
            assert leave.wait(WAIT_S)
            answer = read(*arguments)
            left.set()
            return answer

        monkeypatch.setattr(l2._objects, "get", slow)
        l2.submit_load_task(keys(1), [chunk(0)])
        assert entered.wait(WAIT_S)
        closing = threading.Thread(target=l2.close)
        closing.start()
        leave.set()
        closing.join(WAIT_S)
        assert not closing.is_alive()
        assert left.is_set()
        l2.close()

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvferry.store import Store
from unit.lmcache_connector.fake_lmcache import BFLOAT, HALF, SHAPE, CacheKey, Chunk, Memory, context

WAIT_S = 20.0
PLUGIN = "remote_storage_plugin.kvferry."


@asynccontextmanager
async def connector(
    settings: dict[str, Any], memory: Memory | None = None, **extra: Any
) -> AsyncIterator[Any]:
    from kvferry_lmcache.remote import Adapter

    named = {f"{PLUGIN}{name}": value for name, value in settings.items()}
    made = Adapter().create_connector(context(memory=memory, **named, **extra))
    try:
        yield made
    finally:
        await asyncio.wait_for(made.close(), WAIT_S)


def chunk(fill: int, shape: tuple[int, ...] = SHAPE, dtype: Any = HALF) -> Chunk:
    made = Chunk(shape, dtype)
    made.data[:] = bytes([fill]) * len(made.data)
    return made


def keys(*names: str) -> list[CacheKey]:
    return [CacheKey(f"m@1@0@{name}@half") for name in names]


pytestmark = pytest.mark.usefixtures("lmcache")


async def test_chunks_come_back_and_what_is_absent_takes_no_memory(settings: dict[str, Any]) -> None:
    memory = Memory()
    async with connector(settings, memory) as remote:
        a, b, missing = keys("a", "b", "missing")
        assert not await remote.exists(a)
        first, second = chunk(1), chunk(2)
        await remote.batched_put([a, b], [first, second])
        assert (first.references, second.references) == (1, 1)  # the caller's own reference is the caller's
        assert await remote.exists(a)
        assert remote.exists_sync(b)
        assert remote.batched_contains([a, b, missing]) == 2
        assert await remote.batched_async_contains("id", [missing, a]) == 0
        found = await remote.batched_get([missing, b, a])
        assert [each and bytes(each.data) for each in found] == [None, bytes(second.data), bytes(first.data)]
        assert len(memory.allocated) == 2
        assert [each.references for each in memory.allocated] == [1, 1]
        assert sorted(await remote.list()) == sorted(key.to_string() for key in (a, b))
        assert await remote.ping() == 0
        assert remote.remove_sync(a)
        assert await remote.get(a) is None
        assert remote.counts["loaded"] == 2


async def test_the_prefix_ends_at_the_first_gap_and_the_rest_is_released(settings: dict[str, Any]) -> None:
    memory = Memory()
    async with connector(settings, memory) as remote:
        a, gap, c = keys("a", "gap", "c")
        await remote.batched_put([a, c], [chunk(1), chunk(3)])
        assert [
            bytes(each.data[:1]) for each in await remote.batched_get_non_blocking("id", [a, gap, c])
        ] == [b"\1"]
        assert memory.in_use == 1


@pytest.mark.parametrize("heads", [True, False])
async def test_partial_chunks_keep_their_shape(settings: dict[str, Any], heads: bool) -> None:
    memory = Memory()
    partial = (*SHAPE[:2], 5, SHAPE[3])
    async with connector(settings, memory, save_chunk_meta=heads) as remote:
        [key, other] = keys("partial", "other")
        await remote.batched_put([key, other], [chunk(4, partial), chunk(5, partial)])
        for each, fill in ((key, 4), (other, 5)):  # the second one's shape is known
            found = await remote.get(each)
            assert found.get_shapes() == [partial]
            assert bytes(found.data) == bytes([fill]) * len(found.data)
        assert memory.in_use == 2


async def test_a_chunk_of_another_dtype_keeps_it(settings: dict[str, Any]) -> None:
    memory = Memory()
    async with connector(settings, memory) as remote:
        [key] = keys("bf")
        await remote.put(key, chunk(6, dtype=BFLOAT))
        found = await remote.get(key)
        assert found.get_dtypes() == [BFLOAT]
        assert memory.in_use == 1


@pytest.mark.parametrize(
    "content",
    [b"x", b"\xff" * 40, b"\0" * 28 + b"x" * 512, b"\xf0\xff\xff\xff" * 7 + b"x" * 512],
    ids=["a byte", "short", "zero head", "negative shape"],
)
async def test_what_is_no_chunk_is_a_miss(settings: dict[str, Any], store: Store, content: bytes) -> None:
    memory = Memory()
    async with connector(settings, memory) as remote:
        [key, probe] = keys("bad", "probe")
        await remote.put(probe, chunk(1))
        [full] = [info.key for info in store.scan() if info.key.endswith(probe.to_string().encode())
                  and info.key.startswith(remote._objects._prefix)]  # fmt: skip
        store.put(full[: -len(probe.to_string())] + key.to_string().encode(), content)
        assert await remote.get(key) is None
        assert memory.in_use == 0
        assert remote.counts["failed|load|mismatch"] == 1


async def test_without_memory_chunks_are_missed_not_waited_for(settings: dict[str, Any]) -> None:
    memory = Memory(room=1)
    async with connector(settings, memory) as remote:
        both = keys("a", "b")
        await remote.batched_put(both, [chunk(1), chunk(2)])
        found = await asyncio.wait_for(remote.batched_get(both), WAIT_S)
        assert [each is None for each in found] == [False, True]
        assert remote.counts["failed|load|no_memory"] == 1


class Failing(Memory):
    """An allocator that raises at one of its calls."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.calls_left = at

    def allocate(self, *arguments: Any, **options: Any) -> Chunk | None:
        self.calls_left -= 1
        if not self.calls_left:
            raise MemoryError
        return super().allocate(*arguments, **options)


@pytest.mark.parametrize("call", [3, 4])  # for what is read in place; for a copy after the read
async def test_an_allocator_that_raises_costs_no_memory(settings: dict[str, Any], call: int) -> None:
    memory = Failing(call)
    async with connector(settings, memory) as remote:
        three = keys("a", "b", "c")
        other = chunk(3, dtype=BFLOAT)  # as large as the others, so it is moved when it has been read
        await remote.batched_put(three, [chunk(1), chunk(2), other])
        with pytest.raises(MemoryError):
            await asyncio.wait_for(remote.batched_get(three), WAIT_S)
        assert len(memory.allocated) == call - 1
        assert memory.in_use == 0


class Gate:
    """Holds a method of `Objects` up until it is opened."""

    def __init__(self, remote: Any, name: str) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self._call = getattr(remote._objects, name)
        setattr(remote._objects, name, self._held)

    def _held(self, *arguments: Any) -> Any:
        self.reached.set()
        assert self.open.wait(WAIT_S)
        return self._call(*arguments)

    async def cancelled(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task once it is here, and open."""
        assert await asyncio.to_thread(self.reached.wait, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, WAIT_S)


async def eventually(condition: Any) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


async def test_a_load_that_nobody_waits_for_any_more_gives_its_memory_back(settings: dict[str, Any]) -> None:
    memory = Memory()
    async with connector(settings, memory) as remote:
        [key] = keys("a")
        await remote.put(key, chunk(1))
        gate = Gate(remote, "get")
        await gate.cancelled(asyncio.create_task(remote.batched_get([key])))
        assert memory.in_use == 1  # it is still being written
        gate.open.set()
        await eventually(lambda: memory.in_use == 0)


async def test_memory_is_held_until_a_cancelled_save_has_read_it(settings: dict[str, Any]) -> None:
    async with connector(settings) as remote:
        gate, mine = Gate(remote, "put"), chunk(1)
        await gate.cancelled(asyncio.create_task(remote.batched_put(keys("a"), [mine])))
        mine.ref_count_down()  # as LMCache does, whatever became of the put
        assert not mine.freed
        gate.open.set()
        await eventually(lambda: mine.freed)
        assert remote.exists_sync(keys("a")[0])


async def test_engines_whose_chunks_differ_never_meet(settings: dict[str, Any]) -> None:
    [key] = keys("a")
    async with connector(settings) as one, connector({**settings, "pool.namespace": "other"}) as other:
        await one.put(key, chunk(1))
        assert await one.exists(key)
        assert not await other.exists(key)
    prefixes = {_prefix(context())}
    for name, value in (
        ("kv_dtype", BFLOAT), ("kv_shape", (4, 2, 16, 1, 4)), ("chunk_size", 32), ("use_mla", True),
        ("model_name", "n"), ("world_size", 2),
    ):  # fmt: skip
        changed = context()
        setattr(changed.metadata, name, value)
        prefixes.add(_prefix(changed))
    for name, value in (("remote_serde", "kivi"), ("pre_caching_hash_algorithm", "builtin"),
                        ("use_layerwise", True), ("extra_config", {"save_chunk_meta": False})):  # fmt: skip
        changed = context()
        setattr(changed.config, name, value)
        prefixes.add(_prefix(changed))
    assert len(prefixes) == 11


def _prefix(of: Any) -> str:
    from kvferry.config import load_config
    from kvferry_lmcache.remote import _prefix_of

    found: str = _prefix_of(load_config({}, environ={}), of)
    return found


async def test_wrong_settings_end_the_engine_and_a_missing_node_does_not() -> None:
    from lmcache.v1.exceptions import IrrecoverableException

    with pytest.raises(IrrecoverableException, match="namespace"):
        async with connector({"pool.namespce": "x"}):
            pass
    nowhere = {"store.node": "127.0.0.1:1", "pool.node": "attach"}
    async with connector(nowhere) as remote:
        [key] = keys("a")
        assert not await remote.exists(key)
        assert await remote.batched_get([key]) == [None]
        assert await remote.ping() == 1
        mine = chunk(1)
        with pytest.raises(ConnectionError):
            await remote.put(key, mine)
        assert mine.references == 1
        assert any(name.startswith("failed|lookup|") for name in remote.counts)

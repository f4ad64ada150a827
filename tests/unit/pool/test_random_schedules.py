"""Random schedules of everything that can happen to an engine that pools: requests come, are computed in
chunks, loaded, saved, aborted and preempted, while nodes die and objects are evicted.

Whatever happens, blocks are conserved, each request ends once, no block is used for something else while a
save reads it, and no request goes on with bytes that are not its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from _pool import BLOCK, Later, Memory, hashes, keys, value
from kvferry.errors import UnavailableError
from kvferry.pool import Lookups, PoolLimits, PoolScheduler, PoolWorker, names_of
from kvferry.testing.fake_store import FakeStore

BLOCKS = 24


class Request:
    def __init__(self, name: str, tokens: list[int]) -> None:
        self.name = name
        self.tokens = tokens
        self.hashes = hashes(tokens)
        self.blocks: list[int] = []
        self.computed = 0
        self.state = "waiting"  # loading, running, aborted (while loading)
        self.expected: list[int] = []  # indices of blocks that a load fills


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.store = FakeStore()
        self.keys = keys()
        self.memory = Memory(BLOCKS)
        self.ref = [0] * BLOCKS
        self.ref[0] = 1  # the null block
        self.lookup_jobs, self.load_jobs, self.save_jobs = Later(), Later(), Later()
        lookups = Lookups(
            lambda: self.store, self.keys.groups, ranks=1, submit=self.lookup_jobs.submit, timeout_s=10.0,
            clock=lambda: self.now,
        )  # fmt: skip
        self.scheduler = PoolScheduler(self.keys, lookups, max_held=0)
        self.scheduler.bind(self.hold, self.release, max_held=8)
        self.worker = PoolWorker(
            lambda: self.store, [self.memory.group], rank=0, loads=self.load_jobs.submit,
            saves=self.save_jobs.submit, limits=PoolLimits(40.0, 40.0), clock=lambda: self.now,
        )  # fmt: skip
        self.requests: dict[str, Request] = {}
        self.valid: dict[bytes, bytes] = {}  # what belongs under each name
        self.count = 0
        self.ended: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.beginnings = [[self.random.randrange(9) for _ in range(24)] for _ in range(3)]

    # The engine's block pool

    def hold(self, block_ids: list[int]) -> None:
        for block in block_ids:
            assert self.ref[block] > 0, "a save was ordered of a block that is free"
            self.ref[block] += 1

    def release(self, block_ids: list[int]) -> None:
        for block in block_ids:
            self.ref[block] -= 1
            assert self.ref[block] >= 0
            self.taint(block)

    def taint(self, block: int) -> None:
        if self.ref[block] == 0:  # used for something else from now on
            self.memory.write(block, b"foreign")

    def take(self, count: int) -> list[int] | None:
        free = [block for block in range(1, BLOCKS) if self.ref[block] == 0]
        if len(free) < count:
            return None
        for block in free[:count]:
            self.ref[block] += 1
        return free[:count]

    def free(self, request: Request) -> None:
        for block in request.blocks:
            self.ref[block] -= 1
            self.taint(block)
        request.blocks = []

    # What happens

    def admit(self) -> None:
        self.count += 1
        beginning = self.random.choice(self.beginnings)
        tokens = beginning[: self.random.randrange(1, 25)] + [100 + self.count] * self.random.randrange(8)
        request = self.requests[f"r{self.count}"] = Request(f"r{self.count}", tokens)
        made = names_of(self.keys.of_blocks(0, request.hashes), [0])
        self.valid.update({n.tobytes(): value(h) for n, h in zip(made, request.hashes, strict=True)})
        self.scheduler.arrived(request.name, request.hashes)

    def place(self, request: Request) -> None:
        """As vLLM does with a waiting request."""
        matched = self.scheduler.matched(request.name, request.hashes)
        if matched is None:
            self.seen["later"] += 1
            return
        blocks = self.take(-(-len(request.tokens) // BLOCK))
        if blocks is None:
            return
        request.blocks = blocks
        local = BLOCK * self.random.randrange(len(request.tokens) // BLOCK + 1)  # its own prefix cache
        for index in range(local // BLOCK):
            self.memory.write(blocks[index], request.hashes[index])
        request.computed = max(local, matched)
        if matched > local:
            self.scheduler.load(request.name, local, matched - local, [blocks])
            request.state, request.expected = "loading", list(range(local // BLOCK, matched // BLOCK))
        else:
            request.state = "running"

    def abort(self, request: Request) -> None:
        self.scheduler.finished(request.name, request.hashes, request.computed)
        if request.state == "loading":
            request.state = "aborted"  # its blocks stay until the load has ended
        else:
            self.end(request)

    def preempt(self, request: Request) -> None:
        self.free(request)
        request.state, request.computed = "waiting", 0
        self.seen["preempted"] += 1

    def end(self, request: Request) -> None:
        self.free(request)
        del self.requests[request.name]
        self.ended[request.name] += 1

    def step(self) -> None:
        """One step of the engine: schedule, hand the orders over, compute, save."""
        for request in list(self.requests.values()):
            if request.state == "waiting":
                self.place(request)
        chunks = {}
        for request in self.requests.values():
            if request.state == "running":
                end = min(len(request.tokens), request.computed + self.random.randrange(1, 12))
                chunks[request.name] = end
                self.scheduler.computed(request.name, request.hashes, end, lambda r=request: [r.blocks])
        orders = self.scheduler.take_orders()
        self.worker.start_loads(orders)
        for name, end in chunks.items():
            self.compute(self.requests[name], end)
        self.worker.start_saves(orders)
        self.collect()
        for name in chunks:
            request = self.requests.get(name)
            if request is not None and request.computed == len(request.tokens):
                self.scheduler.finished(request.name, request.hashes, request.computed)
                self.end(request)

    def compute(self, request: Request, end: int) -> None:
        for index in range(request.computed // BLOCK, end // BLOCK):
            self.memory.write(request.blocks[index], request.hashes[index])
        request.computed = end
        for index in range(end // BLOCK):
            assert self.memory.read(request.blocks[index]) == value(request.hashes[index])

    def collect(self) -> None:
        for result in self.worker.take_results():
            request = self.requests[result.request_id]
            failed = result.error is not None
            self.scheduler.loads_ended({request.name}, {request.name} if failed else set())
            self.seen["failed" if failed else "loaded"] += 1
            if request.state == "aborted":
                self.end(request)
            elif failed:
                self.free(request)
                request.state, request.computed = "waiting", 0
            else:
                for index in request.expected:
                    assert self.memory.read(request.blocks[index]) == value(request.hashes[index])
                request.state = "running"
        saved = self.worker.take_saved()
        if saved is not None:
            self.scheduler.saves_ended(saved.ended)
            self.seen["saves"] += len(saved.ended)

    def something(self) -> None:
        pick = self.random.random()
        self.now += self.random.random() / 2
        live = [request for request in self.requests.values() if request.state != "aborted"]
        running = [request for request in live if request.state == "running"]
        if pick < 0.2:
            self.admit()
        elif pick < 0.24:
            self.pick_one(live, self.abort)
        elif pick < 0.3:
            self.pick_one(running, self.preempt)
        elif pick < (0.305 if self.store.down is None else 0.35):
            self.store.objects.clear()
            self.store.down = None if self.store.down else UnavailableError("no node")
        elif pick < 0.36 and self.store.objects:
            del self.store.objects[self.random.choice(list(self.store.objects))]
        elif pick < 0.7:
            self.run_a_job()
        else:
            self.step()

    def pick_one(self, requests: list[Request], action: Callable[[Request], None]) -> None:
        if requests:
            action(self.random.choice(requests))

    def run_a_job(self) -> None:
        queue = self.random.choice([self.lookup_jobs, self.load_jobs, self.save_jobs, self.save_jobs])
        for _ in range(self.random.randrange(4)):
            if queue.jobs:
                queue.run(self.random.randrange(len(queue.jobs)))

    def check(self) -> None:
        used = {block for request in self.requests.values() for block in request.blocks}
        free = [block for block in range(1, BLOCKS) if self.ref[block] == 0]
        assert not used & set(free)
        for name, stored in self.store.objects.items():
            assert self.valid[name] == stored.data, "a block's bytes changed while it was saved"

    def drain(self) -> None:
        for _ in range(500):
            for queue in (self.lookup_jobs, self.load_jobs, self.save_jobs):
                queue.run_all()
            self.step()
            if not self.requests and not self.scheduler.saves_pending:
                return
        raise AssertionError(f"left over: {list(self.requests)}")


def run(seed: int, steps: int, *, holding: bool = True) -> World:
    world = World(seed)
    if not holding:
        world.scheduler.bind(lambda _: None, lambda _: None, max_held=8)
    for _ in range(steps):
        world.something()
        world.check()
    world.store.down = None
    world.drain()
    return world


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.pool.lookup.GRACE_S", 0.0)


def test_random_schedules(extent) -> None:
    seen: Counter[str] = Counter()
    for seed in range(extent.times(20, 200)):
        world = run(seed, extent.times(300, 1000))
        assert world.ref == [1] + [0] * (BLOCKS - 1), seed
        assert set(world.ended.values()) == {1}, seed
        assert len(world.ended) == world.count, seed
        seen.update(world.seen)
    assert set(seen) == {"later", "loaded", "failed", "preempted", "saves"}


def test_without_holding_blocks_it_would_show() -> None:
    """The control of the test above."""

    def until_it_shows() -> None:
        for seed in range(20):
            run(seed, 300, holding=False)

    with pytest.raises(AssertionError, match="bytes changed while it was saved"):
        until_it_shows()

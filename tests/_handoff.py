"""A prefill and a decode side on fake engines and a hand-driven clock, for tests of the hand-off."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from kvferry.handoff import (
    Consumer,
    ConsumerLimits,
    ControlClient,
    LeaseAddress,
    LeaseIssuer,
    LeaseTable,
    LoadRequest,
    MessageLoop,
    PeerBook,
    RemotePrefill,
    content_digest,
)
from kvferry.layout import KVGeometry, KVGroup
from kvferry.testing import FakeNetwork

BLOCK_BYTES = 64
BLOCK_TOKENS = 4
LAYERS = 2


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class BlockIds:
    """Block ids that are handed out and taken back, each exactly once."""

    def __init__(self, count: int) -> None:
        self.everything = list(range(count))
        self.free = list(self.everything)
        self.used: dict[str, list[int]] = {}

    def take(self, owner: str, count: int) -> tuple[int, ...] | None:
        """Give the owner more blocks and return these; None if there are not enough."""
        if len(self.free) < count:
            return None
        new = tuple(self.free.pop(0) for _ in range(count))
        self.used.setdefault(owner, []).extend(new)
        return new

    def give_back(self, owner: str) -> None:
        self.free.extend(self.used.pop(owner))  # KeyError: ended twice, or never began

    def check(self) -> None:
        assert (
            sorted(self.free + [block for blocks in self.used.values() for block in blocks])
            == self.everything
        )


class StepExecutor:
    """Runs jobs when told to, or at once if `inline`."""

    def __init__(self, *, inline: bool = False) -> None:
        self.inline = inline
        self.closed = False
        self.jobs: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], None]) -> bool:
        if self.closed:
            return False
        if self.inline:
            job()
        else:
            self.jobs.append(job)
        return True

    def run(self, count: int | None = None) -> int:
        done = 0
        while self.jobs and (count is None or done < count):
            self.jobs.pop(0)()
            done += 1
        return done


def geometry(num_blocks: int = 16, **changes: object) -> KVGeometry:
    group = KVGroup(
        layer_names=tuple(f"layer.{i}" for i in range(LAYERS)),
        kv_heads=2,
        head_dim=4,
        block_bytes=BLOCK_BYTES,
        num_blocks=num_blocks,
    )
    values: dict[str, object] = {
        "model": "test",
        "dtype": "float32",
        "block_size": BLOCK_TOKENS,
        "groups": (group,),
        **changes,
    }
    return KVGeometry(**values)  # type: ignore[arg-type]


class Memory:
    """A KV cache: bytes [layer, block, BLOCK_BYTES]."""

    def __init__(self, num_blocks: int = 16) -> None:
        self.data = np.zeros((LAYERS, num_blocks, BLOCK_BYTES), dtype=np.uint8)

    def fill(self, block: int, value: int) -> None:
        self.data[:, block] = value

    def values(self, blocks: list[int] | tuple[int, ...]) -> list[int]:
        """The value of each block, which must be the same all over it."""
        found = []
        for block in blocks:
            values = np.unique(self.data[:, block])
            assert len(values) == 1, f"block {block} is torn"
            found.append(int(values[0]))
        return found

    def register(self, engine) -> dict[str, int]:
        return {f"layer.{i}": engine.register(self.data[i], name=f"layer.{i}").id for i in range(LAYERS)}


class Prefill:
    """One worker of a prefill engine."""

    def __init__(
        self, network: FakeNetwork, clock: Clock, *, lease_s: float = 30.0, endpoint=None, **changes
    ):
        self.memory = Memory()
        self.geometry = geometry(**changes)
        self.engine = network.engine(self.geometry.encode(), endpoint=endpoint)
        self.memory.register(self.engine)
        self.lease_s = lease_s
        self.issuer = LeaseIssuer()
        self.table = LeaseTable(lease_s, clock=clock)
        self.table.admit(self.issuer.authority, 0, [])  # as an engine's first step does
        self.loop = MessageLoop(self.engine, table=self.table)
        self.engine.on_message = self.loop.dispatch
        self._values = itertools.count(1)

    def finish(self, request_id: str, blocks: tuple[int, ...], *, admitted: bool = True) -> RemotePrefill:
        """A request's prefill ends: fill its blocks and lease them."""
        for block in blocks:
            self.memory.fill(block, next(self._values) % 255 + 1)
        num_tokens = len(blocks) * BLOCK_TOKENS
        lease = self.issuer.issue(content_digest((blocks,), num_tokens, ""))
        if admitted:
            self.admit(lease, request_id)
        address = LeaseAddress(lease, (self.engine.node_id,), (self.engine.endpoint,), lease_s=self.lease_s)
        return RemotePrefill(address, (blocks,), num_tokens, "p", request_id)

    def admit(self, lease: str, request_id: str) -> None:
        self.table.admit(self.issuer.authority, self.issuer.issued_through, [(lease, request_id)])


class Decode:
    """One worker of a decode engine."""

    def __init__(
        self,
        network: FakeNetwork,
        clock: Clock,
        *,
        allow_remote: bool = False,
        load_timeout_s=30.0,
        **changes,
    ):
        self.memory = Memory()
        self.geometry = geometry(**changes)
        self.engine = network.engine(self.geometry.encode())
        self.loads = StepExecutor()
        self.chores = StepExecutor()
        self.control = ControlClient(self.engine, clock=_ticking(clock))
        self.peers = PeerBook(
            self.engine, self.geometry, allow_remote=allow_remote, connect_timeout_s=5.0, clock=clock
        )
        self.consumer = Consumer(
            self.engine,
            self.geometry,
            self.memory.register(self.engine),
            self.peers,
            self.control,
            loads=self.loads,
            chores=self.chores,
            limits=ConsumerLimits(load_timeout_s, 5.0),
            clock=clock,
        )
        self.loop = MessageLoop(self.engine, control=self.control)
        self.engine.on_message = self.loop.dispatch

    def submit(self, request_id: str, remote: RemotePrefill, blocks: tuple[int, ...], first_block: int = 0):
        first_token = first_block * BLOCK_TOKENS
        self.consumer.submit(
            LoadRequest(request_id, remote, (blocks,), first_token, remote.num_tokens - first_token)
        )

    def load(self, request_id: str, remote: RemotePrefill, blocks: tuple[int, ...], first_block: int = 0):
        """Submit, run, and return the one result."""
        self.submit(request_id, remote, blocks, first_block)
        self.loads.run()
        (result,) = self.consumer.take_results()
        return result


def _ticking(clock: Clock) -> Callable[[], float]:
    """A clock that runs by itself for whoever polls it, so that waiting ends without real time."""

    def read() -> float:
        clock.now += 1.0
        return clock.now

    return read

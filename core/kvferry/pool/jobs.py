"""What an engine's scheduler tells its workers about the pool in one step, and what they answer. Plain data
that pickles."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class BlockSpan(msgspec.Struct, frozen=True):
    """Blocks of one KV cache group, some of one request's chain in order.

    `keys`: 16 bytes per block, see `kvferry.index`; `parents`: the key before each, empty for a first block.
    Both are for all ranks alike.
    """

    group: int
    keys: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    parents: tuple[bytes, ...] = ()


class LoadJob(msgspec.Struct, frozen=True):
    """Read blocks from the pool into the engine's blocks. A request has one at a time."""

    request_id: str
    spans: tuple[BlockSpan, ...]


class SaveJob(msgspec.Struct, frozen=True):
    """Write blocks that the step computes to the pool. The engine keeps them as they are until it ended."""

    job_id: int
    spans: tuple[BlockSpan, ...]


class PoolOrders(msgspec.Struct, frozen=True):
    """One step's orders. `node`: where the pool's node is that the engine brought along; empty: the workers
    find it as the configuration says. `tag`: goes with every object that is saved.
    """

    node: str = ""
    tag: str = ""
    loads: tuple[LoadJob, ...] = ()
    saves: tuple[SaveJob, ...] = ()
    cancels: tuple[str, ...] = ()  # request ids whose loads nobody wants any more


class SavedCounts(msgspec.Struct, frozen=True):
    """How many workers have ended each save job since the last answer, whether it succeeded or not."""

    ended: Mapping[int, int]

    def plus(self, other: SavedCounts) -> SavedCounts:
        """Return the sum of two workers' answers."""
        total = dict(self.ended)
        for job_id, count in other.ended.items():
            total[job_id] = total.get(job_id, 0) + count
        return SavedCounts(total)

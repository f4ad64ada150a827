"""Sharing KV blocks between requests, engines and their restarts, through the store.

Engine-neutral: an engine's connector translates its own events into these calls. Blocks have the names that
`PoolKeys` makes of the engine's own block hashes; the scheduler's side decides, the worker's side moves.
"""

from __future__ import annotations

from kvferry.pool.background import BackgroundJobs
from kvferry.pool.jobs import BlockSpan, LoadJob, PoolOrders, SavedCounts, SaveJob
from kvferry.pool.keys import GroupShape, PoolIdentity, PoolKeys, identity_of, names_of
from kvferry.pool.link import StoreLink
from kvferry.pool.lookup import Lookups, longest_hit
from kvferry.pool.memory import GroupMemory, memory_of
from kvferry.pool.pages import PagePool
from kvferry.pool.parts import LoadParts
from kvferry.pool.scheduler import PoolScheduler
from kvferry.pool.service import PoolBack, PoolFront, open_link
from kvferry.pool.worker import PoolLimits, PoolLoad, PoolWorker

__all__ = [
    "BackgroundJobs",
    "BlockSpan",
    "GroupMemory",
    "GroupShape",
    "LoadJob",
    "LoadParts",
    "Lookups",
    "PagePool",
    "PoolBack",
    "PoolFront",
    "PoolIdentity",
    "PoolKeys",
    "PoolLimits",
    "PoolLoad",
    "PoolOrders",
    "PoolScheduler",
    "PoolWorker",
    "SaveJob",
    "SavedCounts",
    "StoreLink",
    "identity_of",
    "longest_hit",
    "memory_of",
    "names_of",
    "open_link",
]

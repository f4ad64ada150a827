"""The two sides of the pool as engines use them: with their threads and their connections to the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.config import Config
from kvferry.errors import KVFerryError
from kvferry.handoff.service import ThreadPool
from kvferry.pool.jobs import PoolOrders
from kvferry.pool.keys import PoolKeys
from kvferry.pool.link import StoreLink
from kvferry.pool.lookup import Lookups
from kvferry.pool.memory import GroupMemory
from kvferry.pool.scheduler import PoolScheduler
from kvferry.pool.worker import PoolLimits, PoolWorker
from kvferry.store import check_settings, find_nodes, open_embedded, open_store

logger = logging.getLogger(__name__)

REMOVE_TIMEOUT_S = 5.0


class PoolFront:
    """The scheduler's side with what belongs to it; `scheduler` is what an engine's loop talks to."""

    def __init__(
        self, config: Config, keys: PoolKeys, *, open_node: Callable[[Config], Any] = open_embedded
    ) -> None:
        """Attach to this machine's node, or bring one along if none runs and `pool.node` allows it.

        Raises KVFerryError if that node cannot be made. One that does not answer yet is tried again later.
        """
        self._keys = keys
        self._threads = ThreadPool(1, "kvferry-lookup")
        embedded = bring_node(config, open_node)
        self._link = StoreLink(lambda: embedded if embedded is not None else open_store(config))
        if embedded is not None:
            self._link.get()
        else:  # attach before the first request needs it
            self._threads.submit(self._link.attach)
        lookups = Lookups(
            self._link.get,
            keys.groups,
            ranks=keys.ranks,
            submit=self._threads.submit,
            timeout_s=config.pool.lookup_timeout_s,
            local=self._link.local,
        )
        node = "" if embedded is None else embedded.own_endpoint
        self.scheduler = PoolScheduler(keys, lookups, max_held=0, node=node)

    def forget(self) -> bool:
        """Remove everything of this engine's identity from the pool; whether that succeeded, now. False while
        blocks are being saved. Blocks for some seconds at most: for administrators.
        """
        if self.scheduler.saves_pending:
            return False
        try:
            removed = self._link.get().remove_tag(self._keys.tag, timeout_s=REMOVE_TIMEOUT_S)
        except KVFerryError as error:
            logger.warning("the pool could not be emptied: %s", error)
            return False
        self.scheduler.forget_saved()
        logger.info("removed %d blocks from the pool", removed)
        return True

    def close(self) -> None:
        """Stop asking, and end the node if it is ours; idempotent."""
        self._threads.close()
        self._link.close()


class PoolBack:
    """A worker's side with what belongs to it. Thread-safe."""

    def __init__(
        self, config: Config, memory: Sequence[GroupMemory], buffers: Sequence[Any], *, rank: int
    ) -> None:
        """`buffers`: the memory that blocks lie in, registered with the store for other hosts' sake."""
        self._config = config
        self._buffers = tuple(buffers)
        self._node = ""
        self._attached = False
        self._link = StoreLink(self._open, checked=config.transfer.checksum)
        self._loads = ThreadPool(config.pool.max_concurrent_loads, "kvferry-pool-load")
        self._saves = ThreadPool(config.pool.max_concurrent_saves, "kvferry-pool-save")
        self.worker = PoolWorker(
            self._link.get,
            memory,
            rank=rank,
            loads=self._loads.submit,
            saves=self._saves.submit,
            local=self._link.local,
            verify=self._link.verify,
            limits=PoolLimits(config.pool.load_timeout_s, config.pool.save_timeout_s),
        )

    def start_loads(self, orders: PoolOrders, *, idle: bool = False) -> None:
        """See `PoolWorker.start_loads`. Orders say which node it is; the first ones have us attach to it."""
        self._node = orders.node
        if not self._attached:
            self._attached = self._loads.submit(self._link.attach)
        if orders.loads or orders.cancels:
            self.worker.start_loads(orders, idle=idle)

    def close(self) -> None:
        """Stop; what runs ends by its deadline or with the connection. Idempotent."""
        self._loads.close()
        self._saves.close()
        self._link.close()

    def _open(self) -> Any:
        return registered(open_store(self._config, node=self._node or None), self._buffers)


def open_link(config: Config, *, buffers: Sequence[Any] = ()) -> StoreLink:
    """Return the way to the store for a cache that names its objects itself: to a node of its own if
    `pool.node` wants one, else to one that runs, as soon as it does. `buffers` as for `PoolBack`.

    Raises KVFerryError if a node of its own cannot be made.
    """
    embedded = bring_node(config)
    link = StoreLink(
        lambda: registered(open_store(config) if embedded is None else embedded, buffers),
        consequence="the cache cannot be used",
        checked=config.transfer.checksum,
    )
    if embedded is not None:
        link.get()
    return link


def registered(store: Any, buffers: Sequence[Any]) -> Any:
    """Register memory with a store, for other hosts' sake; without it their bytes take a copy more. Return
    the store."""
    for buffer in buffers:
        try:
            store.register(buffer)
        except KVFerryError as error:
            logger.info("blocks from other hosts take a copy more: %s", error)
            break
    return store


def bring_node(config: Config, open_node: Callable[[Config], Any] = open_embedded) -> Any:
    """Return a store with a node of this process's own, as `pool.node` has it; None: attach to one that runs.

    Raises ConfigError (see `check_settings`), KVFerryError if the node cannot be made.
    """
    check_settings(config)
    if not _wants_own_node(config):
        return None
    node = open_node(config)
    logger.info("the pool is a node of this engine's own, of %.1f MiB", config.store.dram / 2**20)
    return node


def _wants_own_node(config: Config) -> bool:
    if config.pool.node != "auto":
        return config.pool.node == "own"
    if config.store.node or find_nodes(config.cluster):
        return False
    if config.cluster.store != "embedded":
        logger.warning(
            "the pool has to wait: cluster.store is %s, a node of this engine's own would not join that "
            "cluster, and no node of it runs on this machine; start `kvferry node --cluster %s` here",
            config.cluster.store,
            config.cluster.store,
        )
        return False
    return True

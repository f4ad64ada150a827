"""Which node a store uses: Mooncake's settings name a master, KVFerry has none."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvferry.config import Config, format_size, load_config
from kvferry.store import Store, find_nodes, open_embedded, open_store
from kvferry.transfer import Endpoint, resolve_session
from kvferry_mooncake.codes import logger

if TYPE_CHECKING:
    from kvferry.node import NodeProcess

EMBEDDED = "embedded"
CLUSTER = "cluster"
AUTO = "auto"
_ETCD = ("etcd://", "etcds://")
_MIN_DRAM = 1 << 20
_SSD_SHARE = 0.8  # of the free space, if nobody says how much
# Mooncake's tenant of those who name none; objects of KVFerry's own connectors have others.
_DEFAULT_TENANT, _OUR_TENANT = "default", "mooncake"


class Placing(NamedTuple):
    """What of Mooncake's settings says where objects go."""

    master: str
    segment_bytes: int
    tenant: str = _DEFAULT_TENANT
    ssd_directory: str = ""


class Placed(NamedTuple):
    """A store, and the node that came with it and ends after it."""

    store: Store
    node: NodeProcess | None
    keeper: str  # in words: which node keeps the objects

    @property
    def port(self) -> int:
        """Of the node that came with the store, else of the one it uses; 0 if that is not known."""
        own = self.store.own_endpoint or (str(self.node.endpoint) if self.node is not None else "")
        found = own or next((str(member.endpoint) for member in self.store.members), "")
        return Endpoint(found).port if found else 0

    def close(self) -> None:
        """End both."""
        self.store.close()
        if self.node is not None:
            self.node.close()


def place(wanted: Placing) -> Placed:
    """Open the store that the settings mean; `docs/mooncake.md` has the table. Raises KVFerryError."""
    settings = _settings(wanted)
    config = load_config(settings)
    master = wanted.master.strip()
    if config.store.node:
        return _attached(open_store(config), config)
    if master in ("", AUTO):
        master = "" if find_nodes(config.cluster) else EMBEDDED
    if master == EMBEDDED:
        offering = _offering(settings, wanted)
        return Placed(open_embedded(offering), None, f"a node in this process, of {_offer(offering)}")
    if master == CLUSTER or master.startswith(_ETCD):
        return _join(settings, wanted, master)
    node = _endpoint(master)
    return _attached(open_store(config, node=node), config, node)


def _attached(store: Store, config: Config, node: Endpoint | None = None) -> Placed:
    """`node`: as given to `open_store`, else it took that of the settings, or the first of this machine."""
    found = [] if node or config.store.node else find_nodes(config.cluster)
    name = str(node or config.store.node or "") if not found else found[0].endpoint
    return Placed(store, None, f"attached to the node {name or 'of this machine'}")


def _endpoint(master: str) -> Endpoint | None:
    return resolve_session(master) if master else None


def _settings(wanted: Placing) -> dict[str, Any]:
    tenant = load_config().store.tenant or _OUR_TENANT
    return {"store.tenant": tenant if wanted.tenant in ("", _DEFAULT_TENANT) else wanted.tenant}


def _offering(settings: Mapping[str, Any], wanted: Placing) -> Config:
    """Return the settings of a node that offers what Mooncake's client would."""
    memory = max(wanted.segment_bytes, _MIN_DRAM)
    if memory != wanted.segment_bytes:
        logger.warning(
            "global_segment_size %d is too small for a node: %s are used",
            wanted.segment_bytes,
            format_size(memory),
        )
    more: dict[str, Any] = {**settings, "store.dram": memory}
    if wanted.ssd_directory:
        room = load_config().store.ssd or _room(Path(wanted.ssd_directory))
        more |= {"store.ssd_directory": wanted.ssd_directory, "store.ssd": room}
    return load_config(more)


def _room(directory: Path) -> int:
    """Return how much an SSD tier may take. If its parent is not there, the node says so when it opens."""
    there = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    return int(shutil.disk_usage(there).free * _SSD_SHARE)


def _offer(config: Config) -> str:
    store = config.store
    disk = f" and {format_size(store.ssd)} on {store.ssd_directory}" if store.ssd else ""
    return f"{format_size(store.dram)} of memory{disk}"


def _join(settings: Mapping[str, Any], wanted: Placing, master: str) -> Placed:
    """Become a member of a cluster; who offers no memory uses this machine's node instead."""
    more = dict(settings)
    if master != CLUSTER:
        more["cluster.store"] = master.replace(";", ",")  # as Mooncake separates addresses
    if wanted.segment_bytes == 0:
        config = load_config(more)
        return _attached(open_store(config), config)
    from kvferry.node import NodeProcess  # with an HTTP server, which others do not need

    offering = _offering(more, wanted)
    node = NodeProcess(offering)
    words = f"a node at {node.endpoint} of {_offer(offering)}, in cluster {offering.cluster.name}"
    try:
        return Placed(open_store(load_config(more), node=node.endpoint), node, words)
    except BaseException:
        logger.debug("the node ends again: its store could not be opened")
        node.close()
        raise

"""Which node a store uses: Mooncake's settings name a master, KVFerry has none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kvferry.config import Config, load_config
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
        return Placed(open_store(config), None)
    if master in ("", AUTO):
        master = "" if find_nodes(config.cluster) else EMBEDDED
    if master == EMBEDDED:
        return Placed(open_embedded(_offering(settings, wanted)), None)
    if master == CLUSTER or master.startswith(_ETCD):
        return _join(settings, wanted, master)
    return Placed(open_store(config, node=_endpoint(master)), None)


def _endpoint(master: str) -> Endpoint | None:
    return resolve_session(master) if master else None


def _settings(wanted: Placing) -> dict[str, Any]:
    tenant = load_config().store.tenant or _OUR_TENANT
    return {"store.tenant": tenant if wanted.tenant in ("", _DEFAULT_TENANT) else wanted.tenant}


def _offering(settings: Mapping[str, Any], wanted: Placing) -> Config:
    """Return the settings of a node that offers what Mooncake's client would."""
    more: dict[str, Any] = {**settings, "store.dram": max(wanted.segment_bytes, _MIN_DRAM)}
    if wanted.ssd_directory:
        os.makedirs(wanted.ssd_directory, exist_ok=True)
        free = os.statvfs(wanted.ssd_directory)
        room = int(free.f_bavail * free.f_frsize * _SSD_SHARE)
        more |= {"store.ssd_directory": wanted.ssd_directory, "store.ssd": load_config().store.ssd or room}
    return load_config(more)


def _join(settings: Mapping[str, Any], wanted: Placing, master: str) -> Placed:
    """Become a member of a cluster; who offers no memory uses this machine's node instead."""
    more = dict(settings)
    if master != CLUSTER:
        more["cluster.store"] = master.replace(";", ",")  # as Mooncake separates addresses
    if wanted.segment_bytes == 0:
        return Placed(open_store(load_config(more)), None)
    from kvferry.node import NodeProcess  # with an HTTP server, which others do not need

    node = NodeProcess(_offering(more, wanted))
    try:
        return Placed(open_store(load_config(more), node=node.endpoint), node)
    except BaseException:
        logger.debug("the node ends again: its store could not be opened")
        node.close()
        raise

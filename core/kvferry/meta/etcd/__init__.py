"""The metadata store of a cluster of machines: etcd 3.4 or later, by its HTTP/JSON gateway."""

from __future__ import annotations

from kvferry.meta.etcd.address import open_etcd
from kvferry.meta.etcd.store import EtcdStore

__all__ = ["EtcdStore", "open_etcd"]

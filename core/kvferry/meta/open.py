"""From settings to a store."""

from __future__ import annotations

from pathlib import Path

from kvferry.config import ClusterOptions, check_cluster_store, make_private, runtime_directory
from kvferry.meta.store import MetaStore


def open_store(options: ClusterOptions, secret: str) -> MetaStore:
    """Return the store that `cluster.store` names; the caller closes it. Does not wait for a server.

    `secret`: the cluster secret, empty if there is none. Raises ConfigError if a setting is wrong,
    AccessDeniedError if the directory of the embedded store is not safe.
    """
    check_cluster_store(options, secret)
    if options.store == "embedded":
        return _embedded(options)
    from kvferry.meta.etcd import open_etcd

    return open_etcd(options)


def _embedded(options: ClusterOptions) -> MetaStore:
    from kvferry.meta.embedded import EmbeddedStore

    if options.directory:
        parent = Path(options.directory)
        make_private(parent)
    else:
        parent = runtime_directory()
    return EmbeddedStore(parent / f"meta-{options.name}")

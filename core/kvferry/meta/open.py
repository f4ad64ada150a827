"""From settings to a store."""

from __future__ import annotations

from pathlib import Path

from kvferry.config import ClusterOptions, make_private, runtime_directory
from kvferry.errors import ConfigError
from kvferry.meta.store import MetaStore

MIN_SECRET_BYTES = 16


def open_store(options: ClusterOptions, secret: str) -> MetaStore:
    """Return the store that `cluster.store` names; the caller closes it. Does not wait for a server.

    `secret`: the cluster secret, empty if there is none. Raises ConfigError if a setting is wrong,
    AccessDeniedError if the directory of the embedded store is not safe.
    """
    if options.store == "embedded":
        return _embedded(options)
    if not options.store.startswith(("etcd://", "etcds://")):
        raise ConfigError(
            f"cluster.store: {options.store!r} is not known; write embedded, etcd://host:2379 or etcds://host:2379"
        )
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"cluster.store is {options.store}, so transfer.cluster_secret_file (or transfer.cluster_secret) "
            f"must give at least {MIN_SECRET_BYTES} bytes: records of nodes are signed with it"
        )
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

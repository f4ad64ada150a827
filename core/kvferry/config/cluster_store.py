"""What `cluster.store` may name, for those that open it and those that only wait for a node that has it."""

from __future__ import annotations

from urllib.parse import urlsplit

from kvferry.config.schema import ClusterOptions
from kvferry.errors import ConfigError

DEFAULT_PORT = 2379
MIN_SECRET_BYTES = 16


def check_cluster_store(options: ClusterOptions, secret: str) -> None:
    """Raise ConfigError if `cluster.store` names no store, or one that needs a cluster secret and `secret` is
    none. Contacts nobody.
    """
    if options.store == "embedded":
        return
    if not options.store.startswith(("etcd://", "etcds://")):
        raise ConfigError(
            f"cluster.store: {options.store!r} is not known; write embedded, etcd://host:2379 or etcds://host:2379"
        )
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"cluster.store is {options.store}, so transfer.cluster_secret_file (or transfer.cluster_secret) "
            f"must give at least {MIN_SECRET_BYTES} bytes: records of nodes are signed with it"
        )
    parse_endpoints(options.store)


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Return the base URLs that `etcd://host[:port],...` or `etcds://...` names. Raises ConfigError."""
    scheme, _, rest = text.partition("://")
    if "@" in rest:
        raise ConfigError(
            "cluster.store must not hold a user or password; set cluster.user and cluster.password_file"
        )
    web = {"etcd": "http", "etcds": "https"}.get(scheme)
    hosts = [item.strip() for item in rest.rstrip("/").split(",")]
    if web is None or not all(hosts):
        raise ConfigError(f"cluster.store: {text!r} is not of the form etcd://host:2379,host:2379")
    return tuple(f"{web}://{_host_and_port(host, text)}" for host in hosts)


def _host_and_port(host: str, text: str) -> str:
    problem = f"cluster.store: {host!r} in {text!r} is not of the form host:port or [ipv6]:port"
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ConfigError(problem) from None
    if not parts.hostname or parts.path or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(problem)
    if host.count(":") > 1 and not host.startswith("["):
        raise ConfigError(problem)
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{name}:{port}"

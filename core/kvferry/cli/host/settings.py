"""What the settings name outside of themselves: files, and hosts. Nothing is contacted but the resolver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from kvferry.config import (
    Config,
    admin_token,
    all_fields,
    check_cluster_store,
    parse_endpoints,
    read_small_file,
    resolve_address,
    resolve_host,
)
from kvferry.errors import ConfigError, KVFerryError


def problems(config: Config) -> list[str]:
    """Return a sentence for each file that cannot be read and each host that is not found."""
    found = []
    for check in _checks(config):
        try:
            check()
        except KVFerryError as error:
            found.append(str(error))
    return found


def _checks(config: Config) -> Iterator[Callable[[], object]]:
    for field in all_fields():
        section, name = field.key.split(".", 1)
        value = getattr(getattr(config, section), name)
        if name.endswith("_file") and value and field.key != "admin.token_file":
            yield partial(_read, config, field.key, value)
    yield partial(admin_token, config.admin)
    for key, text in (("admin.bind", config.admin.bind), ("store.node", config.store.node)):
        yield partial(_find, config, key, resolve_address, text)
    yield partial(_find, config, "router.host", resolve_host, config.router.host)
    for name in ("prefill", "decode", "encode"):
        for url in getattr(config.router, name):
            yield partial(_find, config, f"router.{name}", resolve_host, urlsplit(url).hostname or "")
    yield partial(_cluster, config)


def _read(config: Config, key: str, path: str) -> None:
    try:
        read_small_file(Path(path))
    except OSError as error:
        raise ConfigError(
            f"{key} (from {_source(config, key)}): cannot read {path}: {error.strerror}"
        ) from error


def _find(config: Config, key: str, look_up: Callable[[str], str], text: str) -> None:
    try:
        look_up(text)
    except KVFerryError as error:
        raise ConfigError(f"{key} (from {_source(config, key)}): {error}") from error


def _cluster(config: Config) -> None:
    check_cluster_store(config.cluster, config.transfer.cluster_secret)
    if not config.cluster.store.startswith(("etcd://", "etcds://")):
        return
    for url in parse_endpoints(config.cluster.store):
        _find(config, "cluster.store", resolve_host, urlsplit(url).hostname or "")


def _source(config: Config, key: str) -> str:
    return config.sources.get(key, "default")

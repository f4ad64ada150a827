"""Getting a store: from a node that runs, or with a node of one's own."""

from __future__ import annotations

from kvferry import _native
from kvferry._native import Endpoint
from kvferry.config import Config, check_cluster_store, load_config, resolve_address, unresolved_address
from kvferry.errors import ConfigError, InvalidArgumentError, UnavailableError
from kvferry.store._options import client_options, node_options
from kvferry.store.client import Store
from kvferry.store.discovery import find_nodes


def open_store(config: Config | None = None, *, node: str | Endpoint | None = None) -> Store:
    """Attach to a node: `node`, else the setting `store.node`, else the one of this machine. `config`: by
    default `load_config()`, as all commands have it.

    A host name is looked up now. Raises `UnavailableError` (no such node or host, or it does not answer),
    `ConfigError`, `UnauthenticatedError`, `AccessDeniedError` (it belongs to another cluster).
    """
    config = _config_argument(config)
    options = client_options(config)
    if node:
        endpoint = _node_argument(node)
    elif config.store.node:
        endpoint = named_node(config)
    else:
        endpoint = _of_this_machine(config)
        options.find_node(lambda: _successor(config))
    native = _native.Store.open(endpoint, options)
    return Store(native, timeout_s=config.store.timeout_s)


def open_embedded(config: Config | None = None) -> Store:
    """Return a store with a node of its own in this process, known to nobody else; it ends with the store.
    `config`: as for `open_store`.

    Raises `ResourceExhaustedError` (memory), `ConfigError`, `UnavailableError` (the SSD directory).
    """
    config = _config_argument(config)
    node = _native.Node(node_options(config))
    native = _native.Store.embedded(node, client_options(config))
    return Store(native, timeout_s=config.store.timeout_s, owned=node)


def _config_argument(config: Config | None) -> Config:
    if config is None:
        return load_config()
    if not isinstance(config, Config):
        raise InvalidArgumentError(
            f"config is what load_config() returns, not {type(config).__name__}; an address is given as "
            "open_store(node=...), settings as load_config({...})"
        )
    return config


def _node_argument(node: str | Endpoint) -> Endpoint:
    if isinstance(node, Endpoint):
        return node
    if not isinstance(node, str):
        raise InvalidArgumentError(f"node is an address such as 127.0.0.1:7000, not {type(node).__name__}")
    return Endpoint(resolve_address(node))


def check_settings(config: Config) -> None:
    """Raise ConfigError if `store.node` is no address, or `cluster.store` none that a node could have:
    neither gets better by waiting. Contacts nobody.
    """
    check_cluster_store(config.cluster, config.transfer.cluster_secret)
    if config.store.node:
        _checked(config, unresolved_address(config.store.node))


def named_node(config: Config) -> Endpoint:
    """Return the address of `store.node`; a host name is looked up. Raises `ConfigError`, `UnavailableError`
    (a name that nobody knows).
    """
    try:
        return _checked(config, resolve_address(config.store.node))
    except UnavailableError as error:
        raise UnavailableError(f"store.node from {_source(config)}: {error}") from error


def _checked(config: Config, text: str) -> Endpoint:
    try:
        return Endpoint(text)
    except InvalidArgumentError as error:
        raise ConfigError(f"store.node from {_source(config)} is not allowed: {error}") from None


def _source(config: Config) -> str:
    return config.sources.get("store.node", "code")


def _successor(config: Config) -> Endpoint | None:
    """Return where the node is that runs here now, in place of one that was lost."""
    found = find_nodes(config.cluster)
    return Endpoint(found[0].endpoint) if found else None


def _of_this_machine(config: Config) -> Endpoint:
    found = find_nodes(config.cluster)
    if not found:
        raise UnavailableError(
            f"no node of cluster {config.cluster.name!r} runs on this machine as this user: start one with "
            "`kvferry node`, or name one of another machine (store.node)"
        )
    return Endpoint(found[0].endpoint)

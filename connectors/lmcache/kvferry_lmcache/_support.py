"""What of LMCache is supported, and its settings turned into ours."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping
from typing import Any

from kvferry.config import Config, apply_log_options, explain_changes, load_config
from kvferry.errors import ConfigError, UnsupportedError
from kvferry.versions import in_range

logger = logging.getLogger(__name__)

SUPPORTED = ">=0.5.6,<0.6"

TYPE = "kvferry"
URL = f"{TYPE}://"
PLUGIN_URL = "plugin://"
_PLUGIN_KEY = "remote_storage_plugin."
_LMCACHE_OWN = ("module_path", "class_name")  # settings of a plugin that LMCache itself reads


def check_version(version: str) -> None:
    """Raise UnsupportedError if this LMCache is outside the supported range."""
    if not in_range(version, SUPPORTED):
        raise UnsupportedError(
            f"KVFerry's plugins for LMCache support LMCache {SUPPORTED}, this is {version}: install an "
            "LMCache of that range, or a KVFerry that supports yours"
        )


def check_installed() -> None:
    """Raise UnsupportedError if LMCache is missing or outside the supported range."""
    try:
        version = importlib.metadata.version("lmcache")
    except importlib.metadata.PackageNotFoundError:
        raise UnsupportedError(
            f"LMCache is not installed where its plugin was asked for: pip install 'lmcache{SUPPORTED}'"
        ) from None
    check_version(version)


def is_ours(url: str) -> bool:
    """Say whether LMCache means us: `kvferry://...`, `plugin://kvferry` or `plugin://kvferry.<instance>`."""
    if url.startswith(PLUGIN_URL):
        return url.removeprefix(PLUGIN_URL).split(".", 1)[0] == TYPE
    return url.startswith(URL)


def plugin_config(url: str, extra_config: Mapping[str, Any] | None) -> Config:
    """Return the settings of a plugin: `remote_storage_plugin.<name>.<section>.<key>` of LMCache's
    `extra_config`, and the node that `kvferry://host:port` names. Raises ConfigError.
    """
    name = url.removeprefix(PLUGIN_URL) if url.startswith(PLUGIN_URL) else TYPE
    prefix = f"{_PLUGIN_KEY}{name}."
    given = {
        key.removeprefix(prefix): value
        for key, value in (extra_config or {}).items()
        if key.startswith(prefix) and key.removeprefix(prefix) not in _LMCACHE_OWN
    }
    node = "" if url.startswith(PLUGIN_URL) else url.removeprefix(URL).rstrip("/")
    if node and given.setdefault("store.node", node) != node:
        raise ConfigError(
            f"remote_url names the node {node}, {prefix}store.node another one ({given['store.node']}): "
            "leave one of them out"
        )
    return _loaded(given, f"extra_config {prefix}*")


def adapter_config(params: Mapping[str, Any]) -> Config:
    """Return the settings in an L2 adapter's `adapter_params`. Raises ConfigError."""
    return _loaded(params, "adapter_params")


def _loaded(given: Mapping[str, Any], source: str) -> Config:
    config = load_config(given, overrides_source=source)
    apply_log_options(config.log, own_process=False)
    logger.info("settings: %s", explain_changes(config))
    return config

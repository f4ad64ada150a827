"""From the settings to the native options of nodes and of their clients."""

from __future__ import annotations

from pathlib import Path

from kvferry import _native
from kvferry.config import Config, StoreOptions, format_size
from kvferry.errors import ConfigError
from kvferry.transfer import native_options

# settings that have the same name there
_SAME = (
    "max_objects", "watermark_high", "watermark_low", "ssd_directory", "demote_to_remote", "hot_reads",
    "hot_window_s", "reservation_lease_s", "pin_lease_s", "suspect_after_s",
)  # fmt: skip

_LEAST_SSD = 256 << 10  # the log keeps four files at least


def node_options(config: Config) -> _native.NodeOptions:
    """Return what a node of this configuration is made with. Raises `ConfigError`."""
    store = config.store
    if bool(store.ssd_directory) != bool(store.ssd):
        given, missing = ("ssd_directory", "ssd") if store.ssd_directory else ("ssd", "ssd_directory")
        raise ConfigError(f"store.{given} is set and store.{missing} is not; the SSD tier needs both")
    _check_ssd(store)
    if store.watermark_low > store.watermark_high:
        raise ConfigError(
            f"store.watermark_low ({store.watermark_low:g}) must not be above store.watermark_high "
            f"({store.watermark_high:g})"
        )
    native = _native.NodeOptions()
    native.engine = native_options(config.transfer, b"")
    native.cluster = config.cluster.name
    native.dram_bytes = store.dram
    native.ssd_bytes = store.ssd
    native.default_replicas = store.replicas
    for name in _SAME:
        setattr(native, name, getattr(store, name))
    native.set_policy(store.policy)
    native.set_ssd_policy(store.ssd_policy)
    native.set_ssd_write(store.ssd_write)
    native.set_ssd_sync(store.ssd_sync)
    return native


def _check_ssd(store: StoreOptions) -> None:
    if store.ssd and store.ssd < _LEAST_SSD:
        raise ConfigError(
            f"store.ssd (--ssd DIR:SIZE) is {format_size(store.ssd)}; the SSD tier needs "
            f"{format_size(_LEAST_SSD)} at least"
        )
    directory = Path(store.ssd_directory)
    if store.ssd and directory.exists() and not directory.is_dir():
        raise ConfigError(
            f"store.ssd_directory (--ssd DIR:SIZE) is {directory}, which is no directory: name one, or a "
            "path where one can be made"
        )


def client_options(config: Config) -> _native.StoreOptions:
    """Return what a client is made with."""
    native = _native.StoreOptions()
    native.engine = native_options(config.transfer, b"")
    native.cluster = config.cluster.name
    native.tenant = config.store.tenant
    native.timeout_s = config.store.timeout_s
    native.verify = config.store.verify
    return native

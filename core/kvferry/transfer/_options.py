"""From the settings schema to the native options."""

from __future__ import annotations

from kvferry import _native
from kvferry.config import TransferOptions, check_options, resolve_address
from kvferry.errors import ConfigError, UnavailableError

_NOT_NATIVE = {"cluster_secret_file"}  # load_config puts the file's content into cluster_secret
_ADDRESSES = {"bind", "advertise"}  # may have host names


def native_options(options: TransferOptions, metadata: bytes) -> _native.EngineOptions:
    """Return the native form of `options`; fields have the same names.

    Host names are looked up. `ConfigError` if a value is outside of the schema's bounds, a secret was not
    read, or a host is not found.
    """
    check_options(options)
    if options.cluster_secret_file and not options.cluster_secret:
        raise ConfigError("transfer.cluster_secret_file is read by load_config: get the options from there")
    native = _native.EngineOptions()
    for name in options.__struct_fields__:
        if name not in _NOT_NATIVE:
            value = getattr(options, name)
            if name in _ADDRESSES:
                value = _resolved(name, value)
            setattr(native, name, list(value) if isinstance(value, tuple) else value)
    native.metadata = metadata
    return native


def _resolved(name: str, text: str) -> str:
    try:
        return resolve_address(text)
    except UnavailableError as error:
        raise ConfigError(f"transfer.{name}: {error}") from error

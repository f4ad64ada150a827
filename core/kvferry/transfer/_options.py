"""From the settings schema to the native options."""

from __future__ import annotations

from kvferry import _native
from kvferry.config import TransferOptions, check_options
from kvferry.errors import ConfigError

_NOT_NATIVE = {"cluster_secret_file"}  # load_config puts the file's content into cluster_secret


def native_options(options: TransferOptions, metadata: bytes) -> _native.EngineOptions:
    """Return the native form of `options`; fields have the same names.

    `ConfigError` if a value is outside of the schema's bounds, or a secret was not read.
    """
    check_options(options)
    if options.cluster_secret_file and not options.cluster_secret:
        raise ConfigError("transfer.cluster_secret_file is read by load_config: get the options from there")
    native = _native.EngineOptions()
    for name in options.__struct_fields__:
        if name not in _NOT_NATIVE:
            value = getattr(options, name)
            setattr(native, name, list(value) if isinstance(value, tuple) else value)
    native.metadata = metadata
    return native

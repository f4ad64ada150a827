"""The token of a node's HTTP interface, for the node that asks for it and the commands that send it."""

from __future__ import annotations

from pathlib import Path

from kvferry.config.schema import AdminOptions
from kvferry.config.sources import read_small_file
from kvferry.errors import ConfigError


def admin_token(options: AdminOptions) -> bytes:
    """Return what `admin.token_file` holds, without white space around it; empty if none is set.

    Raises `ConfigError` if it cannot be read, or holds nothing that a header could carry.
    """
    if not options.token_file:
        return b""
    try:
        token = read_small_file(Path(options.token_file)).strip()
    except OSError as error:
        raise ConfigError(f"admin.token_file {options.token_file}: {error.strerror}") from error
    if not token:
        raise ConfigError(f"admin.token_file {options.token_file} is empty")
    if not all(0x20 <= byte <= 0x7E for byte in token):
        raise ConfigError(
            f"admin.token_file {options.token_file}: a token is one line of printable ASCII characters"
        )
    return token

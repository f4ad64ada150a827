"""Mooncake's settings."""

from __future__ import annotations

from kvferry_mooncake.settings import (
    DEFAULT_GLOBAL_SEGMENT_SIZE,
    DEFAULT_LOCAL_BUFFER_SIZE,
    MooncakeConfig,
    parse_bool,
    parse_size,
)

# The names that programs import from Mooncake's module.
_parse_segment_size = parse_size
_parse_bool = parse_bool

__all__ = ["DEFAULT_GLOBAL_SEGMENT_SIZE", "DEFAULT_LOCAL_BUFFER_SIZE", "MooncakeConfig"]

"""Settings: one schema, one precedence, and an account of where each value came from.

Precedence, highest first: argument (command-line flag, or the JSON given to a connector), environment
(`KVFERRY_<SECTION>_<KEY>`), file (`KVFERRY_CONFIG`, else `./kvferry.toml`, else `/etc/kvferry.toml`),
default.

The only package that reads the environment.
"""

from __future__ import annotations

from kvferry.config.cluster_store import check_cluster_store, parse_endpoints
from kvferry.config.explain import explain, explain_changes, explain_rows, to_markdown
from kvferry.config.fields import Field, all_fields, check_options
from kvferry.config.hosts import resolve_address, resolve_host, unresolved_address
from kvferry.config.loader import load_config
from kvferry.config.logs import apply_log_options, http_logger
from kvferry.config.runtime import make_private, runtime_directory
from kvferry.config.schema import (
    AdminOptions,
    ClusterOptions,
    Config,
    EncoderOptions,
    HandoffOptions,
    LogOptions,
    PoolOptions,
    RouterOptions,
    StoreOptions,
)
from kvferry.config.sources import environment_value, read_small_file
from kvferry.config.token import admin_token
from kvferry.config.transfer_schema import TransferOptions
from kvferry.config.units import approximate_size, format_duration, format_size, parse_duration, parse_size

__all__ = [
    "AdminOptions",
    "ClusterOptions",
    "Config",
    "EncoderOptions",
    "Field",
    "HandoffOptions",
    "LogOptions",
    "PoolOptions",
    "RouterOptions",
    "StoreOptions",
    "TransferOptions",
    "admin_token",
    "all_fields",
    "apply_log_options",
    "approximate_size",
    "check_cluster_store",
    "check_options",
    "environment_value",
    "explain",
    "explain_changes",
    "explain_rows",
    "format_duration",
    "format_size",
    "http_logger",
    "load_config",
    "make_private",
    "parse_duration",
    "parse_endpoints",
    "parse_size",
    "read_small_file",
    "resolve_address",
    "resolve_host",
    "runtime_directory",
    "to_markdown",
    "unresolved_address",
]

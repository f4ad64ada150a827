"""Mooncake's settings as its own programs read them: from a JSON file or from MOONCAKE_* variables."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from kvferry.config import environment_value, read_small_file

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200  # bytes, as Mooncake has it
DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30

_SIZE = re.compile(r"(?P<number>[0-9.e+]+)\s*(?P<unit>[kmgt]?)b?")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TRUE, _FALSE = ("true", "1", "yes", "on", "enable"), ("false", "0", "no", "off", "disable", "")
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")
# setting -> variable
_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


def parse_size(value: Any) -> int:
    """Return a number of bytes, given as one or as text such as "4gb" (units are powers of 1024).

    Raises ValueError.
    """
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(str(value).strip().lower())
    if match is None:
        raise ValueError(f"Invalid segment size: {value!r}")
    return int(float(match["number"]) * _UNITS[match["unit"]])


def parse_bool(value: Any) -> bool:
    """Return a truth value, given as one, as a number or as a word. Raises ValueError."""
    if isinstance(value, (bool, int, float)) or value is None:
        return bool(value)
    word = str(value).strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"Invalid boolean value: {value!r}")
    return word in _TRUE


@dataclasses.dataclass
class MooncakeConfig:
    """Mooncake's settings. Raises ValueError for an empty protocol or required field, and for negative
    sizes.
    """

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"Invalid protocol: {self.protocol!r}. Protocol must be a non-empty string.")
        self.protocol = self.protocol.strip().lower()
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}. Size must be non-negative.")
        for name in _REQUIRED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"Config field {name!r} must be a non-empty string, got {value!r}.")

    @staticmethod
    def from_file(file_path: str) -> MooncakeConfig:
        """Read a JSON file. Raises OSError, ValueError."""
        found = json.loads(read_small_file(Path(file_path)))
        for name in _REQUIRED:
            if name not in found:
                raise ValueError(f"Missing required config field: {name}")
        return _made_of({name: value for name, value in found.items() if name in _VARIABLES})

    @staticmethod
    def load_from_env() -> MooncakeConfig:
        """Read the file that MOONCAKE_CONFIG_PATH names, else the MOONCAKE_* variables. Raises ValueError."""
        path = environment_value("MOONCAKE_CONFIG_PATH")
        if path:
            return MooncakeConfig.from_file(path)
        if not environment_value("MOONCAKE_MASTER"):
            raise ValueError(
                "Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set."
            )
        given = {name: environment_value(variable) for name, variable in _VARIABLES.items()}
        found = {name: value for name, value in given.items() if value}
        return _made_of({"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **found})


def _made_of(found: dict[str, Any]) -> MooncakeConfig:
    return MooncakeConfig(
        local_hostname=found["local_hostname"],
        metadata_server=found["metadata_server"],
        global_segment_size=parse_size(found.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)),
        local_buffer_size=parse_size(found.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)),
        protocol=found.get("protocol", "tcp"),
        device_name=found.get("device_name", ""),
        master_server_address=found["master_server_address"],
        enable_ssd_offload=parse_bool(found.get("enable_ssd_offload", False)),
        ssd_offload_path=str(found.get("ssd_offload_path") or ""),
        tenant_id=str(found.get("tenant_id") or "default"),
        enable_client_http_server=parse_bool(found.get("enable_client_http_server", False)),
        client_http_port=int(found.get("client_http_port", 9300)),
    )

"""mooncake.mooncake_config: settings from files and variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooncake.mooncake_config import MooncakeConfig, _parse_bool, _parse_segment_size

FULL = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1"}


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (5, 5),
        ("7", 7),
        ("4gb", 4 << 30),
        ("1.5 KB", 1536),
        ("2M", 2 << 20),
        ("1t", 1 << 40),
        ("3b", 3),
        ("1e3", 1000),
    ],
)
def test_sizes(given: Any, size: int) -> None:
    assert _parse_segment_size(given) == size


@pytest.mark.parametrize("given", ["", "gb", "4xb", "many"])
def test_wrong_sizes(given: str) -> None:
    with pytest.raises(ValueError, match="size"):
        _parse_segment_size(given)


@pytest.mark.parametrize(
    ("given", "truth"), [("yes", True), ("OFF", False), (1, True), (None, False), ("", False)]
)
def test_truth(given: Any, truth: bool) -> None:
    assert _parse_bool(given) is truth


def test_wrong_truth() -> None:
    with pytest.raises(ValueError, match="maybe"):
        _parse_bool("maybe")


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({**FULL, "global_segment_size": "1gb", "protocol": "RDMA", "other": 1}))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    config = MooncakeConfig.load_from_env()
    assert (config.global_segment_size, config.local_buffer_size) == (1 << 30, 1 << 30)
    assert (config.protocol, config.tenant_id, config.enable_ssd_offload) == ("rdma", "default", False)


def test_a_file_without_a_master(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({"local_hostname": "h", "metadata_server": "m"}))
    with pytest.raises(ValueError, match="master_server_address"):
        MooncakeConfig.from_file(str(path))


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    monkeypatch.delenv("MOONCAKE_MASTER", raising=False)
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "embedded")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "64mb")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "true")
    config = MooncakeConfig.load_from_env()
    assert (config.local_hostname, config.metadata_server) == ("localhost", "P2PHANDSHAKE")
    assert (config.global_segment_size, config.enable_ssd_offload) == (64 << 20, True)


@pytest.mark.parametrize("wrong", [{"protocol": " "}, {"local_buffer_size": -1}, {"metadata_server": ""}])
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    right = {**FULL, "global_segment_size": 1, "local_buffer_size": 1, "protocol": "tcp", "device_name": ""}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MooncakeConfig(**{**right, **wrong})

"""Two Mooncakes in one environment are refused."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import mooncake
from kvferry.errors import ConfigError
from kvferry_mooncake.guard import refuse_real_mooncake


def test_alone_it_is_fine() -> None:
    refuse_real_mooncake(mooncake.__path__)


def test_an_installed_mooncake_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mooncake_transfer_engine_non_cuda-0.3.13.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mooncake-transfer-engine-non-cuda\nVersion: 0.3.13\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"mooncake-transfer-engine-non-cuda 0\.3\.13"):
        refuse_real_mooncake(mooncake.__path__)


def test_one_that_is_only_on_the_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "mooncake"
    other.mkdir()
    (other / "engine.cpython-311-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(ConfigError, match="uninstall one of them"):
        refuse_real_mooncake(mooncake.__path__)


def test_the_module_itself_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "mooncake"
    other.mkdir()
    (other / "engine.so").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    spec = importlib.util.find_spec("mooncake")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ConfigError):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

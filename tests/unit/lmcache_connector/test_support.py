from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import kvferry_lmcache
from kvferry.errors import ConfigError, UnsupportedError
from kvferry_lmcache import _support


def test_importing_us_loads_neither_lmcache_nor_torch() -> None:
    code = "import sys, kvferry_lmcache; print([m for m in ('lmcache', 'torch') if m in sys.modules])"
    command = [sys.executable, "-c", code]
    environ = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_missing_or_foreign_lmcache_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(UnsupportedError, match=r"not installed.*pip install 'lmcache>=0\.5\.6"):
        kvferry_lmcache.Adapter  # noqa: B018
    versions["lmcache"] = "0.4.9"
    with pytest.raises(UnsupportedError, match=r"support LMCache >=0\.5\.6,<0\.6, this is 0\.4\.9"):
        kvferry_lmcache.L2Adapter  # noqa: B018
    with pytest.raises(AttributeError):
        kvferry_lmcache.L2AdapterConfig  # noqa: B018


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("kvferry://", True),
        ("kvferry://host:1", True),
        ("plugin://kvferry", True),
        ("plugin://kvferry.second", True),
        ("plugin://kvferry2", False),
        ("redis://kvferry", False),
    ],
)
def test_which_urls_are_ours(url: str, ours: bool) -> None:
    assert _support.is_ours(url) is ours


def test_settings_of_a_plugin_are_those_under_its_name() -> None:
    extra = {
        "remote_storage_plugin.kvferry.module_path": "kvferry_lmcache",
        "remote_storage_plugin.kvferry.class_name": "Adapter",
        "remote_storage_plugin.kvferry.pool.namespace": "one",
        "remote_storage_plugin.kvferry.b.pool.namespace": "two",
        "save_chunk_meta": False,
    }
    first = {key: value for key, value in extra.items() if ".kvferry.b." not in key}
    assert _support.plugin_config("plugin://kvferry", first).pool.namespace == "one"
    assert _support.plugin_config("plugin://kvferry.b", extra).pool.namespace == "two"
    assert _support.plugin_config("kvferry://10.0.0.1:7/", first).store.node == "10.0.0.1:7"
    assert _support.plugin_config("kvferry://", None).store.node == ""


def test_wrong_settings_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"adapter_params.*pool\.namespace|pool\.namespace.*adapter_params"):
        _support.adapter_config({"pool.namespce": "x"})
    named = {"remote_storage_plugin.kvferry.store.node": "a:1"}
    with pytest.raises(ConfigError, match="leave one of them out"):
        _support.plugin_config("kvferry://b:1", named)


def test_the_package_says_where_it_is_typed() -> None:
    assert (Path(kvferry_lmcache.__file__).parent / "py.typed").is_file()

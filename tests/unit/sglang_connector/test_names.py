from __future__ import annotations

import argparse
import importlib
from types import SimpleNamespace

import pytest

import _sglang
from kvferry.errors import ConfigError, UnsupportedError
from kvferry_sglang import _support
from kvferry_sglang.settings import config_of


def named(monkeypatch, **more):
    _sglang.install(monkeypatch, **more)
    return importlib.import_module("kvferry_sglang.names")


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1"])
def test_supported_versions(version):
    _support.check_version(version)


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "1.0"])
def test_other_versions_are_refused_with_both_named(version):
    with pytest.raises(UnsupportedError) as caught:
        _support.check_version(version)
    assert version in str(caught.value)
    assert _support.SUPPORTED in str(caught.value)


def test_the_plug_in_registers_what_there_is(monkeypatch):
    _sglang.install(monkeypatch)
    importlib.import_module("kvferry_sglang.plugin").register()
    assert any(target.endswith("add_cli_args") for target in _sglang.Hooks.registered)


def test_the_plug_in_keeps_out_of_other_versions(monkeypatch, caplog):
    _sglang.install(monkeypatch, version="0.6.0")
    importlib.import_module("kvferry_sglang.plugin").register()
    assert _sglang.Hooks.registered == {}
    assert "0.6.0" in caplog.text


def test_the_name_is_accepted_on_the_command_line(monkeypatch):
    names = named(monkeypatch)
    parser = argparse.ArgumentParser(exit_on_error=False)

    def add(to):
        to.add_argument("--hicache-storage-backend", choices=["file", "dynamic"])
        to.add_argument("--other", choices=["a"])

    names.add_name(add, parser)
    assert parser.parse_args(["--hicache-storage-backend", "kvferry"]).hicache_storage_backend == "kvferry"
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args(["--other", "kvferry"])


def test_the_name_stands_for_our_class(monkeypatch):
    names = named(monkeypatch)
    calls = []

    def attach(_controller, backend, *rest, **more):
        calls.append((backend, rest, more))

    controller = SimpleNamespace(storage_backend_type=None)
    names.attach_by_name(attach, controller, "file", 16, storage_backend_extra_config={"a": 1})
    assert controller.storage_backend_type is None
    names.attach_by_name(
        attach, controller, storage_backend="kvferry", storage_backend_extra_config={"store.dram": 1}
    )
    names.attach_by_name(attach, controller, "kvferry")
    assert controller.storage_backend_type == "kvferry"
    assert calls[0] == ("file", (16,), {"storage_backend_extra_config": {"a": 1}})
    for backend, _, more in calls[1:]:
        extra = more["storage_backend_extra_config"]
        assert backend == "dynamic"
        assert (extra["module_path"], extra["class_name"]) == ("kvferry_sglang.hicache", "KVFerryHiCache")
        assert extra["interface_v1"]
    assert calls[1][2]["storage_backend_extra_config"]["store.dram"] == 1


@pytest.mark.parametrize(
    ("kind", "extra", "wanted"),
    [
        ("file", '{"allocator": "shm"}', "file"),
        ("kvferry", '{"allocator": "shm"}', "shm"),
        ("kvferry", '{"allocator": "default"}', "default"),
        ("kvferry", "@settings.json", "default"),
        ("kvferry", None, "default"),
    ],
)
def test_how_host_pools_are_allocated(monkeypatch, kind, extra, wanted):
    args = SimpleNamespace(hicache_storage_backend_extra_config=extra)
    assert named(monkeypatch, server_args=args).allocator_by_name(lambda: kind) == wanted


@pytest.mark.parametrize(
    ("name", "pool", "backend", "wanted"),
    [
        ("draft", _sglang.MHATokenToKVPoolHost(), "kvferry", True),
        ("draft", _sglang.HostPool(), "kvferry", False),
        ("swa", _sglang.MHATokenToKVPoolHost(), "kvferry", False),
        ("draft", _sglang.MHATokenToKVPoolHost(), "x", False),
        ("draft", None, "kvferry", False),
    ],
)
def test_which_pools_each_rank_saves_though_one_saves_for_all(monkeypatch, name, pool, backend, wanted):
    names = named(monkeypatch)
    entries = {} if pool is None else {name: SimpleNamespace(host_pool=pool)}
    controller = SimpleNamespace(
        storage_config=SimpleNamespace(extra_config={"backend_name": backend}),
        mem_pool_host=SimpleNamespace(entry_map=entries),
    )
    transfer = SimpleNamespace(name=name)
    assert names.saves(lambda *_args: False, controller, transfer) is wanted
    assert names.saves(lambda *_args: True, controller, transfer)


def test_settings_are_ours_and_sglangs_are_left_alone():
    config = config_of({"backend_name": "x", "prefetch_threshold": 16, "store.dram": "2MiB"})
    assert config.store.dram == 2 << 20
    with pytest.raises(ConfigError, match=r'did you mean "store\.dram"'):
        config_of({"store.drm": 1})
    with pytest.raises(ConfigError, match="hicache_storage_backend_extra_config"):
        config_of({"pool.node": "nowhere"})


def test_a_key_of_sglangs_that_is_misspelt_is_named():
    with pytest.raises(ConfigError, match=r'"prefetch_treshold".*did you mean "prefetch_threshold"'):
        config_of({"prefetch_treshold": 16})

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from _vllm_shapes import SlidingWindowSpec, attention, kv_cache_config, state, vllm_config
from kvferry.errors import UnsupportedError
from kvferry_vllm import _support, plugin

FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
EC_FACTORY = "vllm.distributed.ec_transfer.ec_connector.factory"


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.4"])
def test_supported_versions(version):
    _support.check_version(version)


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0"])
def test_other_versions_are_refused_with_both_named(version):
    with pytest.raises(UnsupportedError) as caught:
        _support.check_version(version)
    assert version in str(caught.value)
    assert _support.SUPPORTED in str(caught.value)


@pytest.mark.parametrize("name", ["decode_context_parallel_size", "prefill_context_parallel_size"])
def test_parallelism_that_is_not_supported(name):
    with pytest.raises(UnsupportedError, match=name):
        _support.check_config(vllm_config(**{name: 2}))


def test_tensor_and_pipeline_parallelism_are():
    _support.check_config(vllm_config(tensor_parallel_size=4, pipeline_parallel_size=2))


def test_groups_whose_blocks_belong_to_positions():
    _support.check_groups(kv_cache_config(attention(), attention(SlidingWindowSpec), state()))
    with pytest.raises(UnsupportedError, match="of kind SimpleNamespace"):
        _support.check_groups(kv_cache_config(SimpleNamespace(block_size=1)))
    config = kv_cache_config()
    config.kv_cache_groups[0].enable_kv_transfer = False
    with pytest.raises(UnsupportedError, match="HiSparse"):
        _support.check_groups(config)


def test_models_with_states_are_not_pooled():
    config = vllm_config()
    config.kv_transfer_config = SimpleNamespace(kv_role="kv_both")
    config.cache_config = SimpleNamespace(prefix_caching_hash_algo="sha256")
    assert _support.pools("auto", config, kv_cache_config())
    assert not _support.pools("off", config, kv_cache_config(attention(), state()))
    with pytest.raises(UnsupportedError, match="recurrent states"):
        _support.pools("auto", config, kv_cache_config(attention(), state()))


class TestPlugin:
    @pytest.fixture
    def factory(self, monkeypatch):
        class Factory:
            registered: dict[str, tuple[str, str]] = {}

            @classmethod
            def register_connector(cls, name, module, class_name):
                if name in cls.registered:
                    raise ValueError(f"Connector '{name}' is already registered.")
                cls.registered[name] = (module, class_name)

        for path, name in ((FACTORY, "KVConnectorFactory"), (EC_FACTORY, "ECConnectorFactory")):
            parts = path.split(".")
            for end in range(1, len(parts)):
                parent = ".".join(parts[:end])
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
            module = ModuleType(path)
            setattr(module, name, Factory)
            monkeypatch.setitem(sys.modules, path, module)
        return Factory

    def test_registers_once_however_often_it_is_called(self, factory):
        plugin.register()
        plugin.register()
        assert factory.registered == {
            "KVFerryConnector": ("kvferry_vllm.connector", "KVFerryConnector"),
            "KVFerryECConnector": ("kvferry_vllm.ec_connector", "KVFerryECConnector"),
        }

    def test_a_vllm_without_connectors_starts_all_the_same(self, monkeypatch, caplog):
        monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
        plugin.register()
        assert "KVFerryConnector is not available" in caplog.text
        assert "KVFerryECConnector is not available" in caplog.text

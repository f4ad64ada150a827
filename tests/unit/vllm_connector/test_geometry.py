from __future__ import annotations

import numpy as np
import pytest

from _vllm_shapes import BLOCK, Tensor, kv_cache_config, kv_caches, vllm_config
from kvferry.errors import GeometryMismatchError, UnsupportedError
from kvferry.layout import check_compatible
from kvferry_vllm.geometry import build_geometry, layer_memories


def build(caches=None, isa="AVX2", tp_rank=0, layout="OPAQUE", **parallel):
    layers = layer_memories(caches or kv_caches())
    return build_geometry(
        vllm_config(**parallel),
        kv_cache_config(),
        layers,
        tp_rank=tp_rank,
        instruction_set=isa,
        layout=layout,
    )


def test_geometry_of_the_cpu_backend():
    geometry = build()
    (group,) = geometry.groups
    assert geometry.dtype == "float32"
    assert geometry.block_size == BLOCK
    assert group.layer_names == ("model.layers.0.attn", "model.layers.1.attn")
    assert group.num_blocks == 16
    assert group.block_bytes == 2 * BLOCK * 8 * 4
    assert group.layout == "OPAQUE"
    check_compatible(geometry, build())


def test_kernels_of_another_instruction_set_do_not_fit():
    with pytest.raises(GeometryMismatchError, match="AVX512"):
        check_compatible(build(), build(isa="AVX512"))


def test_a_known_layout_fits_whatever_the_instruction_set():
    check_compatible(build(layout="HND_KT"), build(layout="HND_KT", isa="AVX512"))


def test_ranks_and_sizes():
    assert build(tp_rank=1, tensor_parallel_size=2).tp_rank == 1
    with pytest.raises(GeometryMismatchError, match="kv_heads: ours 2, theirs 4"):
        check_compatible(build(), build(tensor_parallel_size=2))


def test_layers_that_share_memory_are_registered_once():
    caches = kv_caches()
    caches["model.layers.9.attn"] = caches["model.layers.0.attn"]
    assert [layer.name for layer in layer_memories(caches)] == ["model.layers.0.attn", "model.layers.1.attn"]


def test_token_major_blocks_are_one_run_of_memory_too():
    array = np.zeros((16, BLOCK, 2, 8), dtype=np.float32).transpose(0, 2, 1, 3)
    (layer,) = layer_memories({"a": Tensor(array)})
    assert layer.length_bytes == array.nbytes
    assert layer.tensor.shape == (array.size,)


def test_blocks_of_all_layers_side_by_side_are_refused():
    whole = np.zeros((16, 2, 2, BLOCK, 8), dtype=np.float32)
    with pytest.raises(UnsupportedError, match=r"layer a are not one run of memory.*LBHNC"):
        layer_memories({"a": Tensor(whole[:, 0])})


def test_heads_outside_blocks_are_refused():
    array = np.zeros((2, 16, BLOCK, 8), dtype=np.float32).transpose(1, 0, 2, 3)
    with pytest.raises(UnsupportedError, match="not one run of memory"):
        layer_memories({"a": Tensor(array)})


def test_device_memory_is_refused_in_one_sentence():
    with pytest.raises(UnsupportedError, match="in cuda memory"):
        layer_memories({"a": Tensor(np.zeros((2, 2, 2, 2)), device="cuda")})


def test_layers_of_unequal_blocks_are_refused():
    caches = kv_caches(layers=1)
    caches["other"] = Tensor(np.zeros((16, 2, BLOCK, 16), dtype=np.float32))
    with pytest.raises(UnsupportedError, match="equal block size"):
        build(caches)

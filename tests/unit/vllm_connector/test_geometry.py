from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from _vllm_engine import geometry_of
from _vllm_shapes import (
    BLOCK,
    NUM_BLOCKS,
    MLAAttentionSpec,
    SlidingWindowSpec,
    Tensor,
    attention,
    kv_cache_config,
    kv_caches,
    layer_name,
    state,
    vllm_config,
)
from kvferry.errors import GeometryMismatchError, UnsupportedError
from kvferry.layout import cache_memory, check_compatible
from kvferry_vllm.geometry import Ranks, build_geometry
from kvferry_vllm.specs import withheld_tokens

FIRST = Ranks()
BLOCK_BYTES = 2 * BLOCK * 8 * 4


def build(caches=None, *specs, isa="AVX2", ranks=FIRST, layout="OPAQUE", config=None, **parallel):
    return geometry_of(
        caches or kv_caches(),
        *specs,
        config=config or vllm_config(**parallel),
        ranks=ranks,
        instruction_set=isa,
        measure=lambda _block: layout,
    )


def test_geometry_of_the_cpu_backend():
    geometry = build()
    (group,) = geometry.groups
    assert geometry.dtype == "float32"
    assert geometry.block_size == BLOCK
    assert group.layer_names == (layer_name(0), layer_name(1))
    assert group.num_blocks == NUM_BLOCKS
    assert group.block_bytes == BLOCK_BYTES
    assert group.layout == "OPAQUE"
    assert group.null_block == 0
    check_compatible(geometry, build())


def test_kernels_of_another_instruction_set_do_not_fit():
    with pytest.raises(GeometryMismatchError, match="AVX512"):
        check_compatible(build(), build(isa="AVX512"))


def test_a_known_layout_fits_whatever_the_instruction_set():
    check_compatible(build(layout="HND_KT"), build(layout="HND_KT", isa="AVX512"))


def test_a_known_layout_can_be_cut_by_heads():
    half = kv_caches(heads=1)
    one = attention(num_kv_heads=1)
    for rank in range(2):
        theirs = build(half, one, ranks=Ranks(rank), layout="HND_KT", tensor_parallel_size=2)
        assert theirs.total_heads_of(0) == 2
        check_compatible(build(layout="HND_KT"), theirs)
    with pytest.raises(GeometryMismatchError, match="tp_size: ours 1, theirs 2"):
        check_compatible(build(), build(half, one, tensor_parallel_size=2))


def test_copies_of_a_head_are_not_counted_twice():
    one = attention(num_kv_heads=1)
    geometry = build(
        kv_caches(heads=1), one, ranks=Ranks(3), layout="HND_KT", heads=2, tensor_parallel_size=4
    )
    assert geometry.total_heads_of(0) == 2


def guessing(model: str, method: str = "eagle3", revision: str | None = None):
    config = vllm_config()
    config.speculative_config = SimpleNamespace(
        method=method,
        uses_draft_kv_cache=lambda: method != "ngram",
        draft_model_config=SimpleNamespace(model=model, revision=revision),
    )
    return config


def test_a_draft_with_layers_is_part_of_the_geometry():
    """What its layers hold is its own, whatever shape they have."""
    ours = build(config=guessing("head", revision="abc"))
    assert ours.draft == "eagle3 head abc"
    check_compatible(ours, build(config=guessing("head", revision="abc")))
    with pytest.raises(GeometryMismatchError, match="draft: ours eagle3 head abc, theirs eagle3 twin"):
        check_compatible(ours, build(config=guessing("twin")))
    with pytest.raises(GeometryMismatchError, match=r"theirs none; start both .* speculative settings"):
        check_compatible(ours, build())
    assert build(config=guessing("m", "ngram")) == build()  # it looks into the prompt only


def test_stages_hold_parts_of_the_layers():
    stage = build(kv_caches(layers=1), ranks=Ranks(0, 1), pipeline_parallel_size=2)
    assert (stage.pp_rank, stage.pp_size) == (1, 2)
    check_compatible(build(), stage)


def test_a_stage_may_have_no_layer_of_a_group():
    specs = attention(), attention(SlidingWindowSpec, sliding_window=64)
    whole = build(kv_caches(layers=4), *specs, layout="HND_KT")
    caches = {name: tensor for name, tensor in kv_caches(layers=4).items() if name < layer_name(2)}
    stage = build_geometry(
        vllm_config(pipeline_parallel_size=2),
        kv_cache_config(*specs),
        cache_memory(caches),
        ranks=Ranks(0, 0),
        instruction_set="AVX2",
        measure=lambda _block: "HND_KT",
    )
    assert [len(group.layer_names) for group in stage.groups] == [2, 0]
    check_compatible(whole, stage)
    check_compatible(stage, whole)


def test_groups_that_share_memory_share_a_region():
    """vLLM overlays the layers of hybrid groups."""
    caches = kv_caches()
    caches[layer_name(2)], caches[layer_name(3)] = caches[layer_name(0)], caches[layer_name(1)]
    geometry = build(caches, attention(), attention(SlidingWindowSpec, sliding_window=64))
    full, window = geometry.groups
    assert full.regions == window.regions == (layer_name(0), layer_name(1))
    assert window.layer_names == (layer_name(2), layer_name(3))
    assert (full.window, window.window) == (0, 64)
    assert (full.table, window.table) == (0, 1)


def test_a_layer_that_reads_another_ones_cache_is_not_moved_twice():
    caches = kv_caches()
    caches[layer_name(2)] = caches[layer_name(0)]
    (group,) = build(caches).groups
    assert group.layer_names == (layer_name(0), layer_name(1))


def test_states_are_opaque_and_belong_to_their_rank():
    caches = kv_caches(layers=1)
    caches[layer_name(1)] = Tensor(np.zeros((NUM_BLOCKS, 1, 1, 100), dtype=np.int8))
    geometry = build(caches, attention(), state(), ranks=Ranks(1), layout="HND_KT", tensor_parallel_size=2)
    group = geometry.groups[1]
    assert (group.kind, group.layout, group.block_bytes) == ("state", "OPAQUE", 100)
    assert geometry.total_heads_of(1) == 2
    assert geometry.tokens_of(1) == 4096
    assert geometry.dtype == "float32"


def test_latent_caches_are_the_same_on_all_ranks():
    caches = {layer_name(0): Tensor(np.zeros((NUM_BLOCKS, 1, BLOCK, 36), dtype=np.float32))}
    spec = attention(MLAAttentionSpec, num_kv_heads=1, head_size=36, head_size_v=0, max_tp_shards=1)
    ours = build(caches, spec)
    theirs = build(caches, spec, ranks=Ranks(1), tensor_parallel_size=2)
    assert ours.total_heads_of(0) == theirs.total_heads_of(0) == 1
    check_compatible(ours, theirs)


def test_blocks_of_all_layers_side_by_side_are_one_region():
    whole = np.zeros((NUM_BLOCKS, 2, 2, BLOCK, 8), dtype=np.float32)
    memory = cache_memory({layer_name(i): Tensor(whole[:, i]) for i in range(2)})
    (region,) = memory.regions
    assert region.length_bytes == whole.nbytes
    (group,) = build({layer_name(i): Tensor(whole[:, i]) for i in range(2)}).groups
    assert group.offsets == (0, BLOCK_BYTES)
    assert group.block_stride == 2 * BLOCK_BYTES


def test_layers_of_unequal_blocks_are_groups_of_one_list():
    caches = kv_caches(layers=1)
    caches[layer_name(1)] = Tensor(np.zeros((NUM_BLOCKS, 2, BLOCK, 16), dtype=np.float32))
    spec = SimpleNamespace(
        block_size=BLOCK, kv_cache_specs={layer_name(0): attention(), layer_name(1): attention(head_size=8)}
    )
    geometry = build(caches, spec)
    assert [group.block_bytes for group in geometry.groups] == [BLOCK_BYTES, 2 * BLOCK_BYTES]
    assert [group.table for group in geometry.groups] == [0, 0]
    assert geometry.tables == 1


def test_heads_outside_blocks_are_refused():
    array = np.zeros((2, NUM_BLOCKS, BLOCK, 8), dtype=np.float32).transpose(1, 0, 2, 3)
    with pytest.raises(UnsupportedError, match=r"not one run of memory.*LBHNC"):
        build({layer_name(0): Tensor(array)})


def test_device_memory_is_refused_in_one_sentence():
    with pytest.raises(UnsupportedError, match="in cuda memory"):
        cache_memory({"a": Tensor(np.zeros((2, 2, 2, 2)), device="cuda")})


@pytest.mark.parametrize(
    ("mode", "modules", "scales"),
    [
        ("FP8_PER_TENSOR", {0: (0.5, 0.25), 1: (0.5, 0.25)}, ("0.5/0.25",)),
        ("FP8_PER_TENSOR", {0: (0.5, 0.25), 1: (1.0, 1.0)}, ("0.5/0.25", "1/1")),
        ("FP8_PER_TENSOR", {0: (0.5, 0.25)}, ()),
        ("FP8_PER_TOKEN_HEAD", {}, ("in the blocks",)),
        ("NONE", {}, ()),
    ],
)
def test_scales_of_quantised_caches(mode, modules, scales):
    config = vllm_config()
    config.compilation_config.static_forward_context = {
        layer_name(i): SimpleNamespace(_k_scale_float=k, _v_scale_float=v) for i, (k, v) in modules.items()
    }
    spec = attention(kv_quant_mode=SimpleNamespace(name=mode))
    geometry = build(None, spec, config=config)
    assert geometry.groups[0].scales == scales
    if scales or mode == "NONE":
        check_compatible(geometry, geometry)
    else:
        with pytest.raises(GeometryMismatchError, match=r"scales of layer .* ours unknown, theirs unknown"):
            check_compatible(geometry, geometry)


def test_the_last_token_of_a_prompt_is_left_to_the_decode_engine_where_a_state_must_not_hold_it():
    config = SimpleNamespace()
    assert withheld_tokens(kv_cache_config(attention()), config) == 0
    assert withheld_tokens(kv_cache_config(attention(), state()), config) == 1
    config.num_prefill_lookahead_tokens = 4
    assert withheld_tokens(kv_cache_config(attention()), config) == 3

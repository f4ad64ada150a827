"""Engines whose KV caches have another shape than one group of one rank: hybrid models, several ranks."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.harness import model_folder
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, numbered, tokens_of
from engines.vllm_inprocess.test_streaming import Router

pytestmark = pytest.mark.engine

HITS = "external_prefix_cache_hits_total"
LOADED = "kvferry_handoff_loads_total|loaded"
FAILED = "kvferry_handoff_loads_total|failed"


def hand_off(prefill: LabEngine, decode: LabEngine, asked: list[list[int]], ranks: int = 1) -> None:
    """The same tokens as the decode engine computes alone, from KV that all its ranks have loaded."""
    alone = tokens_of(decode.run(asked, MAX_TOKENS))
    assert decode.call("forget_prefixes")
    before = decode.state()["metrics"]
    answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
    after = decode.state()["metrics"]
    assert tokens_of(answers) == alone
    for key, grown in {
        HITS: sum(map(len, asked)),
        LOADED: ranks * len(asked),
        FAILED: 0,
    }.items():
        assert after.get(key, 0) - before.get(key, 0) == grown, key
    decode.all_blocks_free()
    prefill.all_blocks_free()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hybrid_model_moves_only_what_its_windows_hold(lab: Lab, dtype: str) -> None:
    """Gemma3 with windows of 128 tokens: two groups. Long prompts are prefilled in chunks, so that the
    prefill engine has given early blocks of its window up."""
    asked = [*numbered(2, 700), *numbered(2, 100), *numbered(2, 300)]
    hybrid = {"model": str(model_folder("sliding")), "dtype": dtype}
    with lab.engine("kv_producer", **hybrid) as prefill, lab.engine("kv_consumer", **hybrid) as decode:
        hand_off(prefill, decode, asked)
        (params,) = prefill.prefill(numbered(1, 1200, seed=3))
        groups = params["remote_block_ids"]
        assert len(groups) == 2
        held = sorted(sum(block != 0 for block in ids) for ids in groups)
        assert held[1] == 1200 // BLOCK + 1
        assert held[0] < held[1], "the window's early blocks are gone"
        moved = "kvferry_handoff_loaded_bytes_total|shm"
        before = decode.metric(moved)
        decode.run(numbered(1, 1200, seed=3), 1, [params])
        whole = sum(len(ids) for ids in groups)
        per_block = (decode.metric(moved) - before) / whole
        assert 0 < per_block < _bytes_of_a_block(dtype), "blocks outside the window were moved"


def _bytes_of_a_block(dtype: str) -> int:
    """Of one group of the `sliding` model: layers, K and V, heads, tokens, head dim, bytes."""
    return 2 * 2 * 4 * BLOCK * 64 * {"float32": 4, "bfloat16": 2}[dtype]


def test_failed_load_of_a_hybrid_model_is_recomputed(lab: Lab) -> None:
    """With several groups vLLM takes failed requests only; block ids would end the engine."""
    asked = numbered(3, 300)
    hybrid = {"model": str(model_folder("sliding"))}
    with lab.engine("kv_producer", **hybrid) as prefill, lab.engine("kv_consumer", **hybrid) as decode:
        alone = tokens_of(decode.run(asked, MAX_TOKENS))
        assert decode.call("forget_prefixes")
        params = prefill.prefill(asked)
        wrong = copy.deepcopy(params)
        for one in wrong:
            one["remote_block_ids"][0][-1] += 1  # another request's block, or nobody's
        assert tokens_of(decode.run(asked, MAX_TOKENS, wrong)) == alone
        assert decode.metric(FAILED) == 3
        assert decode.call("forget_prefixes")
        assert tokens_of(decode.run(asked, MAX_TOKENS, params)) == alone  # the leases were left alone
        assert decode.metric(LOADED) == 3
        decode.all_blocks_free()
        prefill.all_blocks_free()


@pytest.mark.slow
def test_hybrid_model_is_pooled_by_group(lab: Lab, tmp_path: Path) -> None:
    asked = numbered(3, 700)
    options = {"cluster.directory": str(tmp_path), "store.dram": 256 << 20}
    with lab.engine("kv_both", options=options, model=str(model_folder("sliding"))) as engine:
        alone = tokens_of(engine.run(asked, MAX_TOKENS))
        engine.all_blocks_free()
        assert engine.call("forget_prefixes")
        before = engine.metric(HITS)
        assert tokens_of(engine.run(asked, MAX_TOKENS)) == alone
        assert engine.metric(HITS) - before == 3 * (700 // BLOCK * BLOCK)
        saved = engine.metric("kvferry_pool_saved_bytes_total")
        assert 0 < engine.metric("kvferry_pool_loaded_bytes_total") < saved, "only windows are loaded"


@pytest.mark.slow
@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(1, 2), (2, 1), (2, 2)])
def test_tensor_parallel(lab: Lab, prefill_ranks: int, decode_ranks: int) -> None:
    """vLLM's CPU kernel keeps heads apart inside a block, so that they can be cut and joined."""
    asked = numbered(4, 150)
    with (
        lab.engine("kv_producer", tensor_parallel_size=prefill_ranks) as prefill,
        lab.engine("kv_consumer", tensor_parallel_size=decode_ranks) as decode,
    ):
        (params,) = prefill.prefill(numbered(1, 40))
        assert len(params["kvferry"]["node_ids"]) == prefill_ranks
        decode.run(numbered(1, 40), 1, [params])
        assert decode.call("forget_prefixes")
        hand_off(prefill, decode, asked, decode_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["hybrid", "two ranks to one"])
def test_prompts_that_both_engines_get_at_once_are_read_at_their_end(lab: Lab, shape: str) -> None:
    """What of such a prompt is computed means nothing to the decode engine before all of it is."""
    asked = numbered(3, 700)
    both = {"model": str(model_folder("sliding"))} if shape == "hybrid" else {}
    ranks = 1 if shape == "hybrid" else 2
    with (
        lab.engine("kv_producer", tensor_parallel_size=ranks, **both) as prefill,
        lab.engine("kv_consumer", **both) as decode,
    ):
        alone = tokens_of(decode.run(asked, MAX_TOKENS))
        router = Router(prefill, decode)
        assert decode.call("forget_prefixes")
        before = decode.metric(LOADED)
        ids = [router.send(prompt) for prompt in asked]
        assert tokens_of(decode.wait([here for _, here in ids])) == alone
        prefill.wait([there for there, _ in ids])
        assert decode.metric(LOADED) - before == len(asked)
        assert decode.metric(FAILED) == 0
        decode.all_blocks_free()
        prefill.all_blocks_free()


@pytest.mark.slow
def test_tensor_parallel_with_other_block_sizes(lab: Lab) -> None:
    asked = numbered(3, 150)
    with (
        lab.engine("kv_producer", tensor_parallel_size=2, block_size=64) as prefill,
        lab.engine("kv_consumer", block_size=96) as decode,
    ):
        hand_off(prefill, decode, asked)

"""Engines whose KV caches have another shape than one group of one rank: hybrid models, several ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.harness import model_folder, until
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, numbered, tokens_of
from engines.vllm_inprocess.test_streaming import STREAMS, Router, loading

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]  # engines start in each

HITS = "external_prefix_cache_hits_total"
LOADED = "kvferry_handoff_loads_total|loaded"
FAILED = "kvferry_handoff_loads_total|failed"
# Hits are counted exactly, however slow the machine is.
POOL: dict[str, Any] = {"pool.enabled": "on", "pool.lookup_timeout_s": 20, "store.dram": 256 << 20}
LATENT_BYTES = 3 * 16 * 576 * 4  # of a block: layers, tokens, latent and rotated part, float32
FP8_BYTES = 4 * 2 * 4 * BLOCK * 64  # of a block: layers, K and V, heads, tokens, head dim


def hand_off(
    prefill: LabEngine, decode: LabEngine, asked: list[list[int]], ranks: int = 1, withheld: int = 0
) -> None:
    """The same tokens as the decode engine computes alone, from KV that all its ranks have loaded: of all of
    each prompt but the `withheld` last tokens."""
    alone = tokens_of(decode.run(asked, MAX_TOKENS))
    assert decode.call("forget_prefixes")
    before = decode.state()["metrics"]
    answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
    after = decode.state()["metrics"]
    assert tokens_of(answers) == alone
    for key, grown in {
        HITS: sum(map(len, asked)) - withheld * len(asked),
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


def ask_both(prefill: LabEngine, decode: LabEngine, asked: list[list[int]]) -> None:
    """Prompts that both get at the same time, prefilled in chunks, are read at their end."""
    alone = tokens_of(decode.run(asked, MAX_TOKENS))
    router = Router(prefill, decode)
    assert decode.call("forget_prefixes")
    before = decode.metric(LOADED)
    ids = [router.send(prompt) for prompt in asked]
    assert tokens_of(decode.wait([here for _, here in ids])) == alone
    prefill.wait([there for there, _ in ids])
    assert decode.metric(LOADED) - before == len(asked)


def take_and_pool(giver: LabEngine, taker: LabEngine, asked: list[list[int]], loads: int = 1) -> None:
    """Prompts that are handed off, which is `loads` loads for each, and then found in the taker's pool."""
    expected = tokens_of(giver.run(asked, MAX_TOKENS))
    params = giver.prefill(asked)
    before = taker.metric(LOADED)
    assert tokens_of(taker.run(asked, MAX_TOKENS, params)) == expected
    assert taker.metric(LOADED) - before == loads * len(asked)
    taker.all_blocks_free()
    assert taker.call("forget_prefixes")
    before = taker.metric(HITS)
    assert tokens_of(taker.run(asked, MAX_TOKENS)) == expected
    assert taker.metric(HITS) - before == sum(len(one) // BLOCK * BLOCK for one in asked)
    giver.all_blocks_free()


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
        ask_both(prefill, decode, asked)
        assert decode.metric(FAILED) == 0
        decode.all_blocks_free()
        prefill.all_blocks_free()


@pytest.mark.parametrize("model", ["tiny", "sliding"])
def test_layers_side_by_side(lab: Lab, tmp_path: Path, extent: Any, model: str) -> None:
    """One engine keeps all layers of a block together (BLHNC), the other all blocks of a layer."""
    if model == "sliding" and not extent.long:
        pytest.skip("the same with two groups: --long")
    pool = POOL | {"cluster.directory": str(tmp_path)}
    with (
        lab.engine(
            "kv_both",
            options=pool,
            environ={"VLLM_KV_CACHE_LAYOUT": "BLHNC"},
            model=str(model_folder(model)),
        ) as blocks,
        lab.engine("kv_both", options={"pool.enabled": "off"}, model=str(model_folder(model))) as layers,
    ):
        assert "Using BLHNC KV cache layout" in blocks.log.read_text(errors="replace")
        hand_off(blocks, layers, [*numbered(2, 150), *numbered(1, 700)])
        asked = numbered(2, 150, seed=1)
        take_and_pool(layers, blocks, asked)


@pytest.mark.slow
def test_tensor_parallel_with_other_block_sizes(lab: Lab) -> None:
    asked = numbered(3, 150)
    with (
        lab.engine("kv_producer", tensor_parallel_size=2, block_size=64) as prefill,
        lab.engine("kv_consumer", block_size=96) as decode,
    ):
        hand_off(prefill, decode, asked)


def test_latent_caches_are_handed_off_streamed_and_pooled(lab: Lab, tmp_path: Path) -> None:
    """DeepSeek V2: one latent per token for all heads, in blocks of 16 tokens, which vLLM's kernel wants."""
    asked = numbered(3, 700)
    latent = {"model": str(model_folder("mla"))}
    pool = POOL | {"cluster.directory": str(tmp_path)}
    with (
        lab.engine("kv_producer", options=pool, **latent) as prefill,
        lab.engine("kv_consumer", **latent) as decode,
    ):
        hand_off(prefill, decode, asked)
        moved = decode.metric("kvferry_handoff_loaded_bytes_total|shm")
        assert moved == len(asked) * -(-700 // 16) * LATENT_BYTES
        router = Router(prefill, decode)
        asked = numbered(2, 800, seed=1)  # in fewer blocks than may be held for being saved
        expected = tokens_of(decode.run(asked, MAX_TOKENS))
        assert decode.call("forget_prefixes")
        prefill.call("stepping", on=False)  # without chunks there is no half: vLLM has none with MLA on a CPU
        ids = [router.send(prompt) for prompt in asked]
        until(lambda: loading(decode) == len(asked), "all to be loading")
        prefill.call("stepping", on=True)
        assert tokens_of(decode.wait([here for _, here in ids])) == expected
        prefill.wait([there for there, _ in ids])
        decode.counts(STREAMS + "handed_over", len(asked))
        assert decode.metric(STREAMS + "handed_over") == len(asked)
        assert decode.metric(FAILED) == 0
        prefill.all_blocks_free()
        decode.all_blocks_free()
        assert prefill.call("forget_prefixes")
        before = prefill.metric(HITS)
        assert tokens_of(prefill.run(asked, MAX_TOKENS)) == expected
        assert prefill.metric(HITS) - before == 2 * 800  # vLLM computes the last token of a whole block anew


@pytest.mark.slow
def test_latent_caches_of_other_ranks(lab: Lab, extent: Any) -> None:
    """Each of two ranks has a copy of all latents: one is read, and both are written."""
    if not extent.long:
        pytest.skip("two workers that import vLLM anew: --long")
    latent = {"model": str(model_folder("mla")), "options": {"pool.enabled": "off"}}
    with (
        lab.engine("kv_both", tensor_parallel_size=2, **latent) as ranks,
        lab.engine("kv_both", **latent) as whole,
    ):
        hand_off(ranks, whole, numbered(3, 150))
        hand_off(whole, ranks, numbered(3, 150, seed=1), ranks=2)


def test_recurrent_states_are_handed_off(lab: Lab) -> None:
    """Falcon H1: Mamba 2 beside attention. The prefill engine leaves the last token out; the decode engine
    goes on from the one state that stands for all before it."""
    states = {"model": str(model_folder("mamba")), "enable_prefix_caching": False}
    with lab.engine("kv_producer", **states) as prefill, lab.engine("kv_consumer", **states) as decode:
        hand_off(prefill, decode, [*numbered(2, 150), *numbered(2, 700), *numbered(1, 33)], withheld=1)
        decode.call("permute_blocks")  # of attention; the state is one block
        asked = numbered(2, 150, seed=1)
        alone = tokens_of(decode.run(asked, MAX_TOKENS))
        assert tokens_of(decode.run(asked, MAX_TOKENS, prefill.prefill(asked))) != alone


def test_states_of_gated_delta_nets_are_handed_off(lab: Lab) -> None:
    """Qwen3-Next. vLLM's kernel for CPUs knows bfloat16 only, in which all tokens but the last and then that
    one are not always what all at once are: so the decode engine computes its prompts that way, too."""
    states: dict[str, Any] = {
        "model": str(model_folder("delta")),
        "enable_prefix_caching": False,
        "dtype": "bfloat16",
    }
    with (
        lab.engine("kv_producer", **states) as prefill,
        lab.engine("kv_consumer", max_num_batched_tokens=149, **states) as decode,
    ):
        for prompt in numbered(3, 150):
            hand_off(prefill, decode, [prompt], withheld=1)


@pytest.mark.slow
def test_recurrent_states_of_two_ranks(lab: Lab, extent: Any) -> None:
    """Each rank's state is its own, and goes to its like."""
    if not extent.long:
        pytest.skip("four workers that import vLLM anew: --long")
    states: dict[str, Any] = {"model": str(model_folder("mamba")), "enable_prefix_caching": False}
    with (
        lab.engine("kv_producer", tensor_parallel_size=2, **states) as prefill,
        lab.engine("kv_consumer", tensor_parallel_size=2, **states) as decode,
    ):
        asked = [*numbered(2, 150), *numbered(1, 700), *numbered(1, 33)]
        hand_off(prefill, decode, asked, ranks=2, withheld=1)


def test_quantised_caches_move_between_their_like_only(lab: Lab) -> None:
    asked = numbered(3, 150)
    with lab.engine("kv_producer", kv_cache_dtype="fp8") as prefill:
        with lab.engine("kv_consumer", kv_cache_dtype="fp8") as decode:
            hand_off(prefill, decode, asked)
            assert decode.metric("kvferry_handoff_loaded_bytes_total|shm") == len(asked) * 5 * FP8_BYTES
        with lab.engine("kv_consumer") as decode:
            alone = tokens_of(decode.run(asked, MAX_TOKENS))
            assert decode.call("forget_prefixes")
            assert tokens_of(decode.run(asked, MAX_TOKENS, prefill.prefill(asked))) == alone
            assert decode.metric(FAILED) == len(asked)
            assert "dtype: ours float32, theirs " in decode.log.read_text(errors="replace")
        prefill.all_blocks_free()


def test_a_draft_model_finds_its_cache_handed_off(lab: Lab) -> None:
    """The draft is the model itself, so that each guess is right, from the first on, if its cache is."""
    accepted = "spec_decode_num_accepted_tokens_total"
    asked = numbered(3, 150)
    drafting = {"method": "draft_model", "model": str(model_folder("tiny")), "num_speculative_tokens": 3}
    with (
        lab.engine("kv_producer", speculative_config=drafting) as prefill,
        lab.engine("kv_consumer", speculative_config=drafting) as decode,
    ):
        decode.run(asked, MAX_TOKENS)
        guessed = decode.metric(accepted)
        assert guessed > 0
        assert decode.call("forget_prefixes")
        hand_off(prefill, decode, asked)  # computes them once more itself
        assert decode.metric(accepted) == 3 * guessed


# vLLM's second stage fails without a first step of its own, which the CPU backend leaves out in eager mode.
STAGES: dict[str, Any] = {
    "pipeline_parallel_size": 2,
    "enforce_eager": False,
    "compilation_config": {"mode": 1},
}


@pytest.mark.slow
def test_pipeline_parallel(lab: Lab, tmp_path: Path, extent: Any) -> None:
    """Two stages to one, one to two, and two stages that share the pool with themselves."""
    if not extent.long:
        pytest.skip("two workers that import vLLM anew: --long")
    pool = POOL | {"cluster.directory": str(tmp_path)}
    asked, others = numbered(3, 150), numbered(3, 150, seed=1)
    with (
        lab.engine("kv_both", options=pool, **STAGES) as staged,
        lab.engine("kv_both", options={"pool.enabled": "off"}) as whole,
    ):
        (params,) = staged.prefill(numbered(1, 40))
        assert len(params["kvferry"]["node_ids"]) == 2
        whole.run(numbered(1, 40), 1, [params])
        hand_off(staged, whole, asked)
        take_and_pool(whole, staged, others, loads=2)  # each stage its layers

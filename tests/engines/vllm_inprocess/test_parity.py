"""Prefill here, decode there: the same tokens as one engine, from the other engine's KV cache."""

from __future__ import annotations

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, numbered, prompts, tokens_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]  # engines start in some, and machines may be slow

HITS = "external_prefix_cache_hits_total"
LOADED = "kvferry_handoff_loads_total|loaded"
FAILED = "kvferry_handoff_loads_total|failed"
EXPIRED = "kvferry_handoff_leases_ended_total|expired"


def test_same_tokens_as_one_engine(prefill: LabEngine, decode: LabEngine, reference) -> None:
    # Eight at a time, and no two of one eight share a beginning: what another's load has already cached here,
    # vLLM does not ask for again.
    asked = [prompt for first in range(3) for prompt in prompts()[first::3]]
    assert len(asked) == 24
    before, loaded = decode.metric(HITS), decode.metric(LOADED)
    params = prefill.prefill(asked)
    decode.call("forget_prefixes")
    answers = []
    for start in range(0, len(asked), 8):
        answers += decode.run(asked[start : start + 8], MAX_TOKENS, params[start : start + 8])
        decode.all_blocks_free()
        assert decode.call("forget_prefixes")
    assert tokens_of(answers) == reference.tokens(asked)
    # A prompt of one token leaves nothing to load, since vLLM computes the last token itself.
    moved = [prompt for prompt in asked if len(prompt) > 1]
    assert decode.metric(HITS) - before == sum(len(prompt) for prompt in moved)
    assert decode.metric(LOADED) - loaded == len(moved)
    prefill.all_blocks_free()


def test_each_lease_is_accounted_for(prefill: LabEngine, decode: LabEngine) -> None:
    asked = numbered(8)
    before = prefill.state()["metrics"]
    decode.run(asked, 4, prefill.prefill(asked))
    prefill.all_blocks_free()
    after = prefill.state()["metrics"]
    for key, grown in {
        "kvferry_handoff_leases_granted_total": 8,
        "kvferry_handoff_leases_ended_total|done": 8,
        "kvferry_handoff_leases_ended_total|expired": 0,
        "kvferry_handoff_notices_ignored_total|late": 0,
    }.items():
        assert after.get(key, 0) - before.get(key, 0) == grown, key


def test_permuted_blocks_give_other_tokens(lab: Lab, prefill: LabEngine, reference) -> None:
    """The negative control: if this gave the same tokens, equal tokens elsewhere would show nothing."""
    asked = numbered(8, 200)
    with lab.engine("kv_consumer") as decode:
        decode.call("permute_blocks")
        answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
        assert decode.metric(LOADED) == 8
    same = [got == want for got, want in zip(tokens_of(answers), reference.tokens(asked), strict=True)]
    assert not any(same)


def test_local_prefix_hit_asks_only_for_the_rest(prefill: LabEngine, decode: LabEngine, reference) -> None:
    shared = numbered(1, 10 * BLOCK)[0]
    longer = [shared + numbered(1, 50, seed=7)[0], shared + numbered(1, 90, seed=8)[0]]
    decode.run([shared], 1)  # the decode engine computes it itself
    before = decode.state()["metrics"]
    answers = decode.run(longer, MAX_TOKENS, prefill.prefill(longer))
    after = decode.state()["metrics"]
    assert tokens_of(answers) == reference.tokens(longer)
    assert after[HITS] - before[HITS] == 50 + 90
    bytes_per_block = 4 * 2 * 4 * BLOCK * 64 * 4  # layers, K and V, heads, tokens, head dim, float32
    moved = "kvferry_handoff_loaded_bytes_total|shm"
    assert after[moved] - before.get(moved, 0) == (2 + 3) * bytes_per_block


def test_a_prompt_that_is_all_cached_here_is_given_back(
    prefill: LabEngine, decode: LabEngine, reference
) -> None:
    prompt = numbered(1, 4 * BLOCK + 1)
    decode.run(prompt, 1)
    before, expired = decode.metric(LOADED), prefill.metric(EXPIRED)
    answers = decode.run(prompt, MAX_TOKENS, prefill.prefill(prompt))
    assert tokens_of(answers) == reference.tokens(prompt)
    assert decode.metric(LOADED) == before
    prefill.all_blocks_free()
    assert prefill.metric(EXPIRED) == expired  # it was given back


def test_several_prefill_and_decode_engines(
    lab: Lab, prefill: LabEngine, decode: LabEngine, reference
) -> None:
    asked = numbered(8, 100)
    expired = prefill.metric(EXPIRED)
    with lab.engine("kv_both") as both:
        params = [*prefill.prefill(asked[:4]), *both.prefill(asked[4:])]
        first = decode.run(asked[::2], MAX_TOKENS, params[::2])
        second = both.run(asked[1::2], MAX_TOKENS, params[1::2])
        assert tokens_of(first) == reference.tokens(asked[::2])
        assert tokens_of(second) == reference.tokens(asked[1::2])
        # What it has prefilled itself is in its prefix cache.
        assert both.metric(LOADED) == 2
        assert both.metric(FAILED) == 0
        both.all_blocks_free()
        prefill.all_blocks_free()
        assert both.metric(EXPIRED) == 0
        assert prefill.metric(EXPIRED) == expired


def test_over_tcp(lab: Lab, prefill: LabEngine, reference) -> None:
    asked = prompts()[:8]
    with lab.engine("kv_consumer", options={"protocol": "tcp"}) as decode:
        answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
        assert tokens_of(answers) == reference.tokens(asked)
        state = decode.state()["metrics"]
        assert state["kvferry_handoff_loaded_bytes_total|tcp"] > 0
        assert "kvferry_handoff_loaded_bytes_total|shm" not in state
        decode.all_blocks_free()


def test_preempted_requests_go_on(lab: Lab, prefill: LabEngine, reference) -> None:
    """Four requests of 250 tokens need 32 blocks, the engine has 20: some are preempted."""
    asked = numbered(4, 100)
    with lab.engine("kv_consumer", num_gpu_blocks_override=21, max_model_len=512) as decode:
        answers = decode.run(asked, 150, prefill.prefill(asked))
        assert tokens_of(answers) == reference.tokens(asked, 150)
        metrics = decode.state()["metrics"]
        assert metrics["num_preemptions_total"] > 0
        assert metrics[LOADED] == 4
        decode.all_blocks_free()


def test_bfloat16(lab: Lab) -> None:
    asked = numbered(3, 200)
    with (
        lab.engine("kv_producer", dtype="bfloat16") as prefill,
        lab.engine("kv_consumer", dtype="bfloat16") as decode,
    ):
        alone = tokens_of(decode.run(asked, MAX_TOKENS))
        assert decode.call("forget_prefixes")
        answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
        assert tokens_of(answers) == alone
        assert decode.metric(LOADED) == 3


def test_block_sizes_that_differ(lab: Lab, prefill: LabEngine, reference) -> None:
    asked = prompts()[:20]
    with lab.engine("kv_consumer", block_size=64) as decode:
        answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
        assert tokens_of(answers) == reference.tokens(asked)
        assert decode.metric(LOADED) == 19
        decode.all_blocks_free()

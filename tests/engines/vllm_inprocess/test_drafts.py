"""Models that guess ahead from their own hidden states: EAGLE, EAGLE 3, layers for multi-token prediction.

Their layers are in the KV cache, beside the model's. With random weights no guess is ever right, so that the
guesses themselves are compared: each depends on all that the draft's layers hold of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import Lab, LabEngine, Params
from engines.harness import model_folder
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, numbered, tokens_of
from engines.vllm_inprocess.test_shapes import FAILED, HITS, POOL, ask_both

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LAYER_BYTES = 2 * 4 * BLOCK * 64 * 4  # of a block: K and V, heads, tokens, head dim, float32
LAYERS = {"eagle": 4 + 1, "eagle3": 4 + 1, "mtp": 3 + 1}
SHARED = 4 * BLOCK


def drafting(kind: str) -> dict[str, Any]:
    """The model and what guesses for it."""
    if kind == "mtp":
        return {
            "model": str(model_folder("mtp")),
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
        }
    head = {"method": kind, "model": str(model_folder(kind)), "num_speculative_tokens": 3}
    return {"speculative_config": head}


def answers_and_guesses(
    engine: LabEngine, asked: Sequence[Sequence[int]], params: Sequence[Params | None] | None = None
) -> list[tuple[list[int], Any]]:
    """One prompt after the other: its tokens, and what was guessed of them."""
    engine.call("guesses")
    each = params or [None] * len(asked)
    return [
        (tokens_of(engine.run([prompt], MAX_TOKENS, [one]))[0], engine.call("guesses"))
        for prompt, one in zip(asked, each, strict=True)
    ]


@pytest.mark.parametrize("kind", ["eagle3", "mtp", "eagle"])
def test_layers_of_a_draft_are_handed_off_and_pooled(
    lab: Lab, tmp_path: Path, extent: Any, kind: str
) -> None:
    if kind != "eagle3" and not extent.long:
        pytest.skip("much the same as eagle3: --long")
    pool = POOL | {"cluster.directory": str(tmp_path)}
    with (
        lab.engine("kv_producer", options=pool, **drafting(kind)) as prefill,
        lab.engine("kv_consumer", **drafting(kind)) as decode,
    ):
        asked = numbered(2, 150)
        alone = answers_and_guesses(decode, asked)
        assert all(len(set(map(str, guesses))) > MAX_TOKENS // 2 for _, guesses in alone)
        assert decode.call("forget_prefixes")
        assert answers_and_guesses(decode, asked, prefill.prefill(asked)) == alone
        moved = decode.metric("kvferry_handoff_loaded_bytes_total|shm")
        assert moved == len(asked) * -(-150 // BLOCK) * LAYERS[kind] * LAYER_BYTES
        ask_both(prefill, decode, numbered(2, 700, seed=1))
        pooled(prefill, decode)
        assert decode.metric(FAILED) == 0


def pooled(engine: LabEngine, other: LabEngine) -> None:
    """What the pool gives of a prompt that goes on differently: all that is the same, but for the last block
    of it, in which the draft has read one token ahead."""
    (first, second), (tail, _) = numbered(2, SHARED, seed=2), numbered(2, 150, seed=3)
    second = [*first, *second[:40]]
    assert other.call("forget_prefixes")
    alone = answers_and_guesses(other, [second])
    engine.run([[*first, *tail]], MAX_TOKENS)
    engine.all_blocks_free()  # and so saved
    assert engine.call("forget_prefixes")
    before = engine.metric(HITS)
    assert answers_and_guesses(engine, [second]) == alone
    assert engine.metric(HITS) - before == SHARED - BLOCK


def test_another_draft_is_another_cache(lab: Lab, tmp_path: Path) -> None:
    """Heads of the same shape and other weights: neither handed off to each other nor found in the pool."""
    twin = tmp_path / "twin"
    twin.symlink_to(model_folder("eagle3"))
    other = drafting("eagle3")
    other["speculative_config"]["model"] = str(twin)
    pool = POOL | {"cluster.directory": str(tmp_path / "cluster")}
    asked = numbered(1, 150)
    with (
        lab.engine("kv_both", options=pool, **drafting("eagle3")) as prefill,
        lab.engine("kv_both", options=pool, **other) as decode,
    ):
        prefill.run(asked, 1)
        prefill.all_blocks_free()
        alone = tokens_of(decode.run(asked, MAX_TOKENS))
        assert decode.metric(HITS) == 0
        decode.all_blocks_free()  # and so saved
        assert decode.call("forget_prefixes")
        params = prefill.prefill(numbered(1, 150, seed=1))
        decode.run(numbered(1, 150, seed=1), 1, params)
        assert decode.metric(FAILED) == 1
        assert "draft: ours eagle3" in decode.log.read_text(errors="replace")
        decode.all_blocks_free()
        before = decode.metric(HITS)
        assert tokens_of(decode.run(asked, MAX_TOKENS)) == alone
        assert decode.metric(HITS) - before == SHARED - BLOCK  # its own

"""What vLLM's KV cache specs say, by attribute. Free of vLLM imports."""

from __future__ import annotations

from typing import Any

# Kinds of KV cache whose blocks belong to positions of the prompt, so that they can be moved.
KINDS = (
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "SlidingWindowSpec",
    "SlidingWindowMLASpec",
    "ChunkedLocalAttentionSpec",
    "MambaSpec",
)


def layer_spec(spec: Any, layer: str) -> Any:
    """The spec of one layer of a group; any one's if the group has no such layer."""
    each = getattr(spec, "kv_cache_specs", None)
    if not each:
        return spec
    return each.get(layer) or next(iter(each.values()))


def kinds_of(spec: Any) -> set[str]:
    """The kinds of KV cache in a group."""
    each = getattr(spec, "kv_cache_specs", None)
    return {type(one).__name__ for one in each.values()} if each else {type(spec).__name__}


def is_state(spec: Any) -> bool:
    """Whether a block is a recurrent state, which stands for all tokens before its end."""
    return type(layer_spec(spec, "")).__name__ == "MambaSpec"


def window_of(spec: Any) -> int:
    """How many trailing tokens a group keeps blocks for; 0: all.

    A full-attention spec may name a window too; vLLM keeps all of its blocks all the same.
    """
    spec = layer_spec(spec, "")
    kind = type(spec).__name__
    if kind.startswith("SlidingWindow"):
        return int(spec.sliding_window)
    return int(spec.attention_chunk_size) if kind == "ChunkedLocalAttentionSpec" else 0


def total_heads(spec: Any, model_config: Any, tp_size: int) -> int:
    """How many different KV heads the ranks hold together."""
    if is_state(spec):
        return 1 if spec.tp_replicated else tp_size
    shards = getattr(spec, "max_tp_shards", None)
    total = int(spec.num_kv_heads) * (min(shards, tp_size) if shards else tp_size)
    if shards is None and spec.num_kv_heads == 1 and tp_size > 1:  # one head each: copies, if there are fewer
        total = min(total, int(model_config.get_total_num_kv_heads()))
    return total


def withheld_tokens(kv_cache_config: Any, vllm_config: Any) -> int:
    """How many last prompt tokens a prefill engine must leave to the decode engine.

    vLLM always computes a prompt's last token itself. A recurrent state must not hold that token yet; some
    draft models look further ahead.
    """
    specs = [layer_spec(group.kv_cache_spec, "") for group in kv_cache_config.kv_cache_groups]
    one = any(is_state(spec) or getattr(spec, "bounded_replay", False) for spec in specs)
    return max(int(one), int(getattr(vllm_config, "num_prefill_lookahead_tokens", 0)) - 1)


def draft_of(vllm_config: Any) -> str:
    """What guesses ahead with layers in the KV cache: its method, model and revision; else empty."""
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is None or not speculative.uses_draft_kv_cache():
        return ""
    draft = speculative.draft_model_config
    return f"{speculative.method} {draft.model} {draft.revision or ''}".rstrip()


def reads_ahead(vllm_config: Any) -> bool:
    """Whether a draft's layers depend on the token after the one that they are of, so that vLLM itself does
    not reuse the last block of a hit."""
    speculative = getattr(vllm_config, "speculative_config", None)
    return speculative is not None and bool(speculative.use_eagle_block_drop())


def scales_of(spec: Any, layers: list[str], vllm_config: Any) -> tuple[str, ...]:
    """The quantisation scales of a cache, by layer; empty if there are none or they are unknown."""
    mode = getattr(getattr(spec, "kv_quant_mode", None), "name", "NONE")
    if mode == "NONE" or not layers:
        return ()
    if mode.endswith("PER_TOKEN_HEAD") or mode.startswith(("TURBOQUANT", "ULTRAQUANT")):
        return ("in the blocks",)
    modules = vllm_config.compilation_config.static_forward_context
    found = []
    for name in layers:
        pair = [getattr(modules.get(name), f"_{part}_scale_float", None) for part in ("k", "v")]
        if not all(isinstance(value, float) for value in pair):
            return ()
        found.append("/".join(f"{value:.9g}" for value in pair))
    return (found[0],) if len(set(found)) == 1 else tuple(found)

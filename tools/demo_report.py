"""What the demo prints: the answers side by side, and what moved between the two engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.client import Answer, Metrics
from tools.progress import ToolError
from tools.servers import Server

BLOCK_TOKENS = 32  # the servers' --block-size
_TOKENS = "vllm:prompt_tokens_by_source_total"
_HANDOFF = "vllm:kvferry_handoff"


@dataclass(frozen=True)
class Pair:
    """The running servers of a disaggregated set-up."""

    prefill: Server
    decode: Server
    router: Server


def _shown(text: str, width: int = 200) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."


def print_answers(titles: Sequence[str], reference: Sequence[Answer], answers: Sequence[Answer]) -> int:
    """Print each answer with its first-token times; returns how many differ from the reference."""
    print(
        "\nAnswers (prefill on one vLLM, decode on the other), compared with a single vLLM token by token:\n"
    )
    different = 0
    for title, one, two in zip(titles, reference, answers, strict=True):
        same = bool(two.token_ids) and one.token_ids == two.token_ids
        different += not same
        print(f"  {title}: {_shown(two.text)}")
        if not same:
            print(f"    single vLLM: {_shown(one.text)}")
        times = f"{one.ttft_s * 1000:.0f} ms alone, {two.ttft_s * 1000:.0f} ms with KVFerry"
        print(f"    {'equal' if same else 'DIFFERENT'}, {len(two.token_ids)} tokens; first token: {times}\n")
    print(f"{len(answers) - different} of {len(answers)} answers are equal, token by token.")
    means = [sum(answer.ttft_s for answer in group) / len(group) * 1000 for group in (reference, answers)]
    print(f"Mean time to first token: {means[0]:.0f} ms alone, {means[1]:.0f} ms with KVFerry", end="")
    print(" (all servers of this demo share one machine's cores).")
    return different


def _grown(before: Metrics, after: Metrics, name: str, **labels: str) -> float:
    return after.total(name, **labels) - before.total(name, **labels)


def block_bytes(model: Path) -> int:
    """Bytes of one KV block of all layers, as the demo's servers keep it: BLOCK_TOKENS tokens in float32."""
    config = json.loads((model / "config.json").read_text())
    heads = config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(config["num_hidden_layers"] * 2 * heads * head_dim * 4 * BLOCK_TOKENS)


def print_moved(before: Metrics, after: Metrics, bytes_per_block: int) -> None:
    """Print what the decode server loaded between two readings. Raises ToolError when that is nothing."""
    tokens = _grown(before, after, _TOKENS, source="external_kv_transfer")
    computed = _grown(before, after, _TOKENS, source="local_compute")
    loads = _grown(before, after, f"{_HANDOFF}_loads_total", outcome="loaded")
    failed = _grown(before, after, f"{_HANDOFF}_loads_total", outcome="failed")
    seconds = _grown(before, after, f"{_HANDOFF}_load_seconds_sum")
    if tokens <= 0 or loads <= 0:
        raise ToolError("no KV was moved: the decode server computed every prompt itself")
    print(f"\nMoved: the KV of {tokens:.0f} prompt tokens in {loads:.0f} loads ({failed:.0f} failed).")
    print(f"  The decode server computed {computed:.0f} prompt tokens itself.")
    total = 0.0
    for transport in sorted(after.label_values(f"{_HANDOFF}_loaded_bytes_total", "transport")):
        moved = _grown(before, after, f"{_HANDOFF}_loaded_bytes_total", transport=transport)
        total += moved
        if moved:
            blocks = moved / bytes_per_block
            size = f"{blocks:.0f} blocks of {bytes_per_block / 1024:.0f} KiB"
            print(f"  by {transport}: {size}, {moved / 1e6:.1f} MB")
    if seconds > 0:
        rate = total / seconds / 1e9
        print(f"  {rate:.2f} GB/s over {seconds * 1000:.1f} ms of loading, hand-shakes included")

"""What the demo prints: the answers side by side, and what moved between the two engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.client import Answer, Metrics
from tools.progress import ToolError
from tools.servers import Server

_EXTERNAL_TOKENS = "vllm:prompt_tokens_by_source_total"


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


def print_moved(before: Metrics, after: Metrics) -> None:
    """Print what the decode server loaded between two readings. Raises ToolError when that is nothing."""
    tokens = _grown(before, after, _EXTERNAL_TOKENS, source="external_kv_transfer")
    computed = _grown(before, after, _EXTERNAL_TOKENS, source="local_compute")
    if tokens <= 0:
        raise ToolError("no KV was moved: the decode server computed every prompt itself")
    print(f"\nMoved: the KV of {tokens:.0f} prompt tokens; the decode server computed {computed:.0f} itself.")

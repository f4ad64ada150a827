"""A prompt that one engine computes and another one answers: ours beside vLLM's NixlConnector."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from benchmarks.vllm_bench.peers import nixl
from benchmarks.vllm_bench.run import PREFIX, TAIL, Run, Timed, awake, both, fresh_folder

from engines.engine_lab import PREFILL, LabEngine
from kvferry.handoff import StreamAddress, build_stream, parse_lease_address, stream_order

HANDED_OVER = "prompt_tokens_by_source_total|external_kv_transfer"

Pair = tuple[LabEngine, LabEngine]


def handed_over(run: Run, *, beside_nixl: bool) -> None:
    """From the request to the decode engine's first token, and the decode engine's part of that."""
    cluster = fresh_folder(run.folder, "handoff")
    pairs: dict[str, Pair] = {"ours": (run.ours(cluster, "kv_producer"), run.ours(cluster, "kv_consumer"))}
    if beside_nixl:
        pairs["nixl"] = (run.start(*nixl()), run.start(*nixl()))
    for _ in range(2):
        for name, pair in pairs.items():
            _pull(run, f"{name} warm-up", pair, run.tokens(PREFIX + TAIL))
            if name == "ours":
                _stream(run, "warm-up", pair, run.tokens(PREFIX + TAIL))
    for number in range(run.rounds):
        names = [*pairs, "stream"]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            prompt = run.tokens(PREFIX + TAIL)
            if name == "stream":
                _stream(run, name, pairs["ours"], prompt)
            else:
                _pull(run, name, pairs[name], prompt)
    for pair in pairs.values():
        for engine in pair:
            run.lab.stop(engine)


def _pull(run: Run, name: str, pair: Pair, prompt: Sequence[int]) -> None:
    """As any proxy does: the prompt here, then the answer there. NIXL's progress threads take a core each, so
    its engines stand still when it is not their turn."""
    with awake(*pair) if name.startswith("nixl") else nullcontext():
        _pull_now(run, name, pair, prompt)


def _pull_now(run: Run, name: str, pair: Pair, prompt: Sequence[int]) -> None:
    prefill, decode = pair
    before = decode.metric(HANDED_OVER)
    started = time.monotonic()
    first = run.ask(prefill, prompt, params=PREFILL)
    second = run.ask(decode, prompt, params=first["params"])
    run.seconds[f"{name} handed over"].append(time.monotonic() - started)
    run.seconds[f"{name} decode"].append(second["seconds"])
    _check(name, first, second, decode.metric(HANDED_OVER) - before)


def _stream(run: Run, name: str, pair: Pair, prompt: Sequence[int]) -> None:
    """As our router does: both engines get the request at once."""
    prefill, decode = pair
    address = parse_lease_address(run.ask(prefill, run.tokens(40), params=PREFILL)["params"])
    stream = secrets.token_hex(16)
    follow = build_stream(StreamAddress(stream, address.node_ids, address.endpoints))
    order: dict[str, Any] = {**PREFILL, **stream_order(stream)}
    answers: dict[str, Timed] = {}
    before = decode.metric(HANDED_OVER)

    def there() -> None:
        answers["first"] = run.ask(prefill, prompt, params=order)

    def here() -> None:
        answers["second"] = run.ask(decode, prompt, params=follow)
        run.seconds[f"{name} handed over"].append(time.monotonic() - started)

    started = time.monotonic()
    both(there, here)
    _check(name, answers["first"], answers["second"], decode.metric(HANDED_OVER) - before)


def _check(name: str, first: Timed, second: Timed, tokens: float) -> None:
    if second["tokens"] != first["tokens"]:
        raise RuntimeError(f"{name}: the two engines' first tokens differ")
    if tokens < PREFIX:
        raise RuntimeError(f"{name}: only {tokens:.0f} tokens were handed over")

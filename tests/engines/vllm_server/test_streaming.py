"""The router sends both servers a request at once; the decode server reads the KV cache while it is made."""

from __future__ import annotations

import pytest

from engines.harness import Fleet, ask_concurrently, completion_body, is_idle, metrics, until
from engines.vllm_server.questions import token_ids

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STREAMED = {"outcome": "streamed"}


def bodies(count: int, seed: int) -> list[dict[str, object]]:
    return [
        completion_body(token_ids(700 + 60 * number, seed=seed + number), 16, ignore_eos=True)
        for number in range(count)
    ]


def test_long_prompts_are_read_while_they_are_computed(fleet: Fleet) -> None:
    ask_concurrently(fleet.router.url, bodies(2 * len(fleet.prefill), seed=600))  # each has answered once
    router = metrics(fleet.router.url).total("kvferry_router_prefill_total", **STREAMED)
    early = sum(metrics(one.url).total("vllm:kvferry_handoff_early_bytes_total") for one in fleet.decode)
    failed = sum(
        metrics(one.url).total("vllm:kvferry_handoff_loads_total", outcome="failed") for one in fleet.decode
    )
    moved = fleet.moved_tokens()
    asked = bodies(8, seed=700)
    answers = ask_concurrently(fleet.router.url, asked, workers=4)
    wrong = [
        body
        for body, answer in zip(asked, answers, strict=True)
        if answer.token_ids != fleet.expected(body).token_ids
    ]
    assert wrong == []
    assert fleet.moved_tokens() - moved == sum(700 + 60 * number for number in range(8))
    until(
        lambda: metrics(fleet.router.url).total("kvferry_router_prefill_total", **STREAMED) - router == 8,
        "the router to count them",
    )
    now = sum(metrics(one.url).total("vllm:kvferry_handoff_early_bytes_total") for one in fleet.decode)
    assert now > early
    assert failed == sum(
        metrics(one.url).total("vllm:kvferry_handoff_loads_total", outcome="failed") for one in fleet.decode
    )
    for server in (*fleet.prefill, *fleet.decode):
        until(lambda server=server: is_idle(server), f"every block of {server.name} is free")

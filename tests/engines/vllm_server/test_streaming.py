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


class Counts:
    """What the router and the decode servers counted until now."""

    def __init__(self, fleet: Fleet) -> None:
        self.streamed = metrics(fleet.router.url).total("kvferry_router_prefill_total", **STREAMED)
        self.moved = fleet.moved_tokens()
        loads = [metrics(one.url) for one in fleet.decode]
        self.early = sum(one.total("vllm:kvferry_handoff_early_bytes_total") for one in loads)
        self.failed = sum(one.total("vllm:kvferry_handoff_loads_total", outcome="failed") for one in loads)


def test_long_prompts_are_read_while_they_are_computed(fleet: Fleet) -> None:
    ask_concurrently(fleet.router.url, bodies(2 * len(fleet.prefill), seed=600))  # each has answered once
    for attempt in range(3):
        before = Counts(fleet)
        asked = bodies(8, seed=700 + 100 * attempt)
        answers = ask_concurrently(fleet.router.url, asked, workers=4)
        wrong = [
            body
            for body, answer in zip(asked, answers, strict=True)
            if answer.token_ids != fleet.expected(body).token_ids
        ]
        assert wrong == []
        now = Counts(fleet)
        # On a machine that stands still for seconds decode servers give up on some, and compute them.
        if now.moved - before.moved == sum(700 + 60 * number for number in range(8)):
            break
    else:
        pytest.fail("in none of three rounds all prompts were moved")
    until(lambda: Counts(fleet).streamed - before.streamed == 8, "the router to count them")
    assert now.early > before.early
    assert now.failed == before.failed
    for server in (*fleet.prefill, *fleet.decode):
        until(lambda server=server: is_idle(server), f"every block of {server.name} is free")

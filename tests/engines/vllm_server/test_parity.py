"""A prefill and a decode vLLM behind the router answer like one undisturbed vLLM, token by token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.harness import (
    BLOCK_SIZE,
    Answer,
    Fleet,
    ask_concurrently,
    complete,
    empty_prefix_cache,
    is_idle,
    metrics,
    stream,
    until,
)
from engines.vllm_server.questions import bodies

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def forgotten_prefixes(fleet: Fleet) -> None:
    """Decode starts each test with an empty prefix cache, so that KV has to be moved again."""
    for server in fleet.decode:
        until(lambda server=server: is_idle(server), f"{server.name} is idle")
        empty_prefix_cache(server)


def differences(fleet: Fleet, answers: dict[str, Answer]) -> list[str]:
    """One line per answer that is not the single vLLM's."""
    lines = []
    for title, answer in answers.items():
        expected = fleet.expected(bodies()[title])
        assert expected.token_ids, "the reference has no token ids"
        if (answer.token_ids, answer.text) != (expected.token_ids, expected.text):
            lines.append(f"{title}: {answer.token_ids} instead of {expected.token_ids}")
    return lines


def prompt_tokens(fleet: Fleet) -> dict[str, int]:
    return {title: fleet.expected(body).raw["usage"]["prompt_tokens"] for title, body in bodies().items()}


def whole_blocks(tokens: int) -> int:
    """Tokens in whole blocks that do not hold the last token, which decode always computes itself."""
    return (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_answers_equal_and_kv_was_moved(fleet: Fleet) -> None:
    before = fleet.moved_tokens()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: [fleet.expected(body) for body in bodies().values()])  # on another core
        answers = {title: complete(fleet.router.url, body) for title, body in bodies().items()}
        asked.result(400)
    assert differences(fleet, answers) == []
    moved = fleet.moved_tokens() - before
    lengths = prompt_tokens(fleet)
    # Prompts with a shared beginning may find it in decode's own prefix cache; all others must be moved.
    alone = {title: n for title, n in lengths.items() if "shared" not in title and "same" not in title}
    assert moved >= sum(whole_blocks(n) for n in alone.values())
    assert moved <= sum(lengths.values())


def test_streamed_answers_equal(fleet: Fleet) -> None:
    before = fleet.moved_tokens()
    answers = {title: stream(fleet.router.url, body) for title, body in bodies().items()}
    assert differences(fleet, answers) == []
    assert fleet.moved_tokens() > before


def test_eight_concurrent_answers_equal(fleet: Fleet) -> None:
    before = fleet.moved_tokens()
    titles = list(bodies())
    answers = ask_concurrently(fleet.router.url, [bodies()[title] for title in titles], workers=8)
    assert differences(fleet, dict(zip(titles, answers, strict=True))) == []
    assert fleet.moved_tokens() > before


def test_external_hits_are_counted_by_vllm(fleet: Fleet) -> None:
    name = "vllm:external_prefix_cache_hits_total"
    before = sum(metrics(server.url).total(name) for server in fleet.decode)
    complete(fleet.router.url, bodies()["1200 tokens"])
    after = sum(metrics(server.url).total(name) for server in fleet.decode)
    assert after - before >= whole_blocks(1200)


def test_every_block_is_free_again(fleet: Fleet) -> None:
    ask_concurrently(fleet.router.url, list(bodies().values())[:8], workers=8)
    for server in (*fleet.prefill, *fleet.decode):
        until(lambda server=server: is_idle(server), f"every block of {server.name} is free")


def test_every_server_takes_part(fleet: Fleet) -> None:
    ask_concurrently(fleet.router.url, list(bodies().values()), workers=4)
    for server in fleet.prefill:
        assert metrics(server.url).total("vllm:prompt_tokens_total") > 0, server.name
    for server in fleet.decode:
        page = metrics(server.url)
        assert page.total("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") > 0, (
            server.name
        )

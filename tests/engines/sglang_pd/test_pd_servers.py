"""Prefill/decode disaggregation between real servers of SGLang: the same tokens as Transformers computes,
whatever else happens. SGLang's servers check their pools when they are idle, and end if anything was leaked.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest
from tools.client import complete, completion_body, metrics, stream
from tools.servers import Server, free_port, router_server

from engines.harness import running, until
from engines.sglang.environment import sglang_python
from engines.sglang_pd.servers import MAX_TOKENS, PROMPTS, Pair, assert_idle_and_well, flush, post

MIXED_S = 240.0  # for one request to be answered and one to fail

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]  # the first starts the servers


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_tokens_are_those_of_the_model(pair: Pair, number: int) -> None:
    status, answer = pair.ask(PROMPTS[number])
    assert status == 200, answer
    assert answer["output_ids"] == pair.answers[number]["tokens"]


def test_requests_at_once_get_their_own_tokens(pair: Pair) -> None:
    numbers = [*range(len(PROMPTS))] * 2
    begun = [pair.begin(PROMPTS[number])[1] for number in numbers]
    for number, answer in zip(numbers, begun, strict=True):
        status, body = answer.result(180)
        assert status == 200, body
        assert body["output_ids"] == pair.answers[number]["tokens"]


def test_a_prefix_that_the_decode_server_has_is_not_sent_again(pair: Pair) -> None:
    for server in (pair.prefill, pair.decode):
        until(lambda server=server: flush(server), f"{server.name} being idle")
    sent = []
    for _ in range(2):
        before = metrics(pair.prefill.url).total("sglang:kv_transfer_total_mb_sum")
        status, answer = pair.ask(PROMPTS[4])
        assert status == 200, answer
        assert answer["output_ids"] == pair.answers[4]["tokens"]
        until(
            lambda before=before: metrics(pair.prefill.url).total("sglang:kv_transfer_total_mb_sum") > before,
            "the transfer being counted",
        )
        sent.append(metrics(pair.prefill.url).total("sglang:kv_transfer_total_mb_sum") - before)
    assert answer["meta_info"]["cached_tokens"] >= 512
    assert sent[1] < sent[0] / 4, sent


def test_heads_are_split_between_two_ranks_and_failures_stay_with_their_requests(pair: Pair) -> None:
    """SGLang's fault injector fails a part of the requests of this server, at any time of their lives: the
    longer one takes, the likelier. So short ones are sent until one was answered and one failed."""
    outcomes = set()
    shortest = min(range(len(PROMPTS)), key=lambda number: len(PROMPTS[number]))
    end_s = time.monotonic() + MIXED_S
    for number in itertools.chain(range(len(PROMPTS)), itertools.repeat(shortest)):
        status, answer = pair.ask(PROMPTS[number], decode=pair.other)
        outcomes.add(status)
        if status == 200:
            assert answer["output_ids"] == pair.answers[number]["tokens"]
        else:
            assert status == 500, answer
        if (outcomes == {200, 500} and number == shortest) or time.monotonic() > end_s:
            break
    assert outcomes == {200, 500}
    assert_idle_and_well(pair)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_request_can_be_aborted_at_any_time(pair: Pair, side: str) -> None:
    server: Server = getattr(pair, side)
    for delay_s in (0.0, 0.01, 0.03, 0.1, 0.3):
        both = pair.begin(PROMPTS[4], max_tokens=60)
        time.sleep(delay_s)  # the state in which the abort finds the request is left to chance
        assert post(f"{server.url}/abort_request", {"abort_all": True, "rid": ""})[0] == 200
        # An abort that came before its request has met nothing: the answer is then the usual one.
        done, late = wait(both, timeout=120)
        assert not late, f"aborted after {delay_s} s, it goes on"
        assert {each.result()[0] for each in done} <= {200, 500, 503, 400}
    assert_idle_and_well(pair)


@pytest.fixture(scope="module")
def our_router(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--engine", "sglang", "--bootstrap-ports", str(pair.bootstrap_port))
    logs = tmp_path_factory.mktemp("router")
    router = router_server(sglang_python(), [pair.prefill], [pair.decode], logs, flags=flags)
    with running([router]):
        yield router


@pytest.fixture(scope="module")
def sglang_router(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SGLang's own router, as published."""
    python = os.environ.get("KVFERRY_SGLANG_PEERS_PYTHON")
    if not python:
        pytest.skip("KVFERRY_SGLANG_PEERS_PYTHON names no interpreter with sglang-router; ./test sets it")
    command = [
        python, "-m", "sglang_router.launch_router", "--pd-disaggregation", "--prefill", pair.prefill.url,
        str(pair.bootstrap_port), "--decode", pair.decode.url, "--host", "127.0.0.1", "--port", "{port}",
        "--prometheus-port", str(free_port()),
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("router") / "sglang-router.log"
    router = Server("sglang-router", command, log, health="/readiness")
    with running([router]):
        yield router


@pytest.mark.parametrize("name", ["our_router", "sglang_router"])
def test_routers_in_front_give_the_same_text(pair: Pair, name: str, request: pytest.FixtureRequest) -> None:
    router: Server = request.getfixturevalue(name)
    for number, prompt in enumerate(PROMPTS):
        body = completion_body(prompt, MAX_TOKENS, ignore_eos=True)
        del body["return_token_ids"], body["seed"]
        expected = pair.answers[number]["text"]
        assert complete(router.url, body).text == expected
        assert stream(router.url, body).text == expected


def test_a_client_that_leaves_the_router_leaves_nothing_behind(pair: Pair, our_router: Server) -> None:
    body = completion_body(PROMPTS[4], 400, ignore_eos=True)
    del body["return_token_ids"], body["seed"]
    with pytest.raises(Exception, match="timed out"):
        complete(our_router.url, body, timeout_s=0.3)
    assert_idle_and_well(pair)


def test_the_end_of_the_prefill_server_is_an_error_at_once(pair: Pair, our_router: Server) -> None:
    """The last test: it takes the prefill server down."""
    begun = [pair.begin(PROMPTS[4], max_tokens=60)[1] for _ in range(4)]
    pair.prefill.kill()
    done, late = wait(begun, timeout=150)
    assert not late, "the decode server waits for the dead"
    assert {each.result()[0] for each in done} <= {200, 500}
    # SGLang keeps the pages for 30 s in case the dead server still writes.
    until(lambda: flush(pair.decode), "the decode server being idle", timeout_s=180.0)
    body = completion_body(PROMPTS[1], MAX_TOKENS)
    del body["return_token_ids"], body["seed"]
    status, answer = post(f"{our_router.url}/v1/completions", body)
    assert status in (502, 503), answer
    assert "prefill server" in json.loads(answer)["error"]["message"]


def test_logs_have_no_trace_of_a_bug(pair: Pair) -> None:
    for server in pair.servers:
        text = Path(server.log).read_text(errors="replace")
        assert "memory leak" not in text.lower(), server.name
        assert "Transfer thread failed" not in text, server.name

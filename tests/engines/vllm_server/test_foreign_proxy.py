"""A pull-mode proxy of others, vllm-router, drives our connector unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tools.servers import Server, free_port

from engines.harness import (
    Fleet,
    ask_concurrently,
    complete,
    completion_body,
    empty_prefix_cache,
    is_idle,
    running,
    show_logs,
    until,
)
from engines.vllm_server.questions import token_ids

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def proxy(fleet: Fleet) -> Iterator[Server]:
    python = os.environ.get("KVFERRY_PEERS_PYTHON")
    if not python:
        pytest.skip("KVFERRY_PEERS_PYTHON names no interpreter with vllm-router; ./test sets it")
    command = [
        python, "-m", "vllm_router.launch_router", "--vllm-pd-disaggregation", "--policy", "round_robin",
        "--host", "127.0.0.1", "--port", "{port}", "--prometheus-port", str(free_port()),
        "--disable-retries", "--worker-startup-check-interval", "1",
    ]  # fmt: skip
    for server in fleet.prefill:
        command += ["--prefill", server.url]
    for server in fleet.decode:
        command += ["--decode", server.url]
    server = Server("vllm-router", command, fleet.logs / "vllm-router.log")
    with running([server]):
        yield server


@pytest.mark.parametrize("fleet", ["tiny"], indirect=True)
def test_vllm_router_gets_equal_answers_from_moved_kv(fleet: Fleet, proxy: Server) -> None:
    for server in (*fleet.prefill, *fleet.decode):
        until(lambda server=server: is_idle(server), f"{server.name} is idle")
        empty_prefix_cache(server)
    lengths = (20, 200, 333, 640, 900, 1300)
    bodies = [completion_body(token_ids(n, seed=1000 + n), 16, ignore_eos=True) for n in lengths]
    before = fleet.moved_tokens()
    answers = [complete(proxy.url, body) for body in bodies[:3]] + ask_concurrently(proxy.url, bodies[3:])
    expected = [fleet.expected(body).token_ids for body in bodies]
    assert [answer.token_ids for answer in answers] == expected, show_logs([proxy])
    assert fleet.moved_tokens() - before >= sum((n - 1) // 32 * 32 for n in lengths)


@pytest.mark.parametrize("fleet", ["tiny"], indirect=True)
def test_vllm_router_leaves_no_block_held(fleet: Fleet, proxy: Server) -> None:
    complete(proxy.url, completion_body(token_ids(700, seed=77), 4, ignore_eos=True))
    for server in (*fleet.prefill, *fleet.decode):
        until(lambda server=server: is_idle(server), f"every block of {server.name} is free")

"""Prefill and decode servers that share the pool and change their roles: by hand, as `test_ranks.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tools.servers import Server

from engines.harness import running, until
from engines.sglang.environment import BY_HAND, sglang_python
from engines.sglang_pd.servers import (
    PAGE,
    PROMPTS,
    READY_S,
    Pair,
    assert_idle_and_well,
    bootstrap,
    change_role,
    decode_server,
    flush,
    free_port,
    make_model,
    offloading_server,
    pooling_server,
)
from kvferry.testing.nodes import NodeChild

MIXED_S = 240.0  # for a request to be answered by a server that fails some
SWITCH = ("--enable-pd-role-switch",)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900), BY_HAND]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Running servers, for all tests: starting one takes three imports of SGLang."""
    sglang_python()
    folder = tmp_path_factory.mktemp("sglang-pd")
    model, logs, cluster = folder / "model", folder / "logs", folder / "cluster"
    cluster.mkdir(mode=0o700)
    ports = {name: free_port() for name in ("prefill", "decode")}
    answers = make_model(model)
    pool = {"KVFERRY_CLUSTER_DIRECTORY": str(cluster), "KVFERRY_POOL_NODE": "attach"}
    injector = {"SGLANG_TEST_DISAGG_FAILURE_PROB": "0.002", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    made = Pair(
        prefill=pooling_server("prefill", model, logs, *SWITCH, *bootstrap(ports["prefill"]), env=pool),
        decode=decode_server("decode", model, logs, *SWITCH, *bootstrap(ports["decode"])),
        other=offloading_server("decode-of-two", model, logs, "--tp-size", "2", env={**injector, **pool}),
        ports=ports,
        answers=answers,
    )
    with NodeChild(cluster, "--dram", "64MiB"), running(made.servers, READY_S), made.pool:
        yield made
        for server in made.servers:
            server.kill()  # SGLang takes its time to end by itself


def test_what_a_decode_server_generated_comes_from_the_pool(pair: Pair) -> None:
    """Two ranks put it there, each its heads; the prefill server has one rank, and takes both."""
    prompt = [at * at * 31 % 1500 + 3 for at in range(4 * PAGE + 5)]
    count, later = 4 * PAGE, 8  # tokens that are generated; those that are generated again
    end_s = time.monotonic() + MIXED_S
    while True:  # this server's requests fail at times
        status, answer = pair.ask(prompt, decode=pair.other, max_tokens=count)
        if status == 200 or time.monotonic() > end_s:
            break
    assert status == 200, answer
    tokens = answer["output_ids"]
    turn = prompt + tokens[:-later]

    def from_pool() -> int:
        until(lambda: flush(pair.prefill), "the prefill server being idle", timeout_s=180.0)
        prefill, decode = pair.begin(turn, max_tokens=later)
        status, answer = decode.result(180)
        assert status == 200, answer
        assert answer["output_ids"] == tokens[-later:]
        return int(prefill.result(180)[1]["meta_info"]["cached_tokens_details"]["storage"])

    until(lambda: from_pool() == len(turn) // PAGE * PAGE, "all whole pages come from the pool", 180)


def test_servers_change_their_roles(pair: Pair) -> None:
    roles = {"prefill": "decode", "decode": "prefill"}
    for back in (False, True):
        for name, role in roles.items():
            server: Server = getattr(pair, name)
            until(
                lambda server=server, role=name if back else role: change_role(server, role),
                f"{name} changing its role",
                timeout_s=180.0,
            )
        both = {} if back else {"prefill": pair.decode, "decode": pair.prefill}
        prefill, decode = pair.begin(PROMPTS[3], **both)
        status, answer = decode.result(180)
        assert status == 200, answer
        assert answer["output_ids"] == pair.answers[3]["tokens"]
    # What the prefill server had put into the pool before is still there.
    assert prefill.result(180)[1]["meta_info"]["cached_tokens_details"]["storage"] > 0
    assert_idle_and_well(pair)

"""Both engines get the request at once: the decode engine reads the KV cache while it is being computed."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.harness import until
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, numbered, prompts, tokens_of
from kvferry.handoff import StreamAddress, build_stream, parse_lease_address, stream_order

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]  # engines start in some, and machines may be slow

HITS = "external_prefix_cache_hits_total"
LOADED = "kvferry_handoff_loads_total|loaded"
FAILED = "kvferry_handoff_loads_total|failed"
FAILURES = "kvferry_handoff_load_failures_total|"
EARLY = "kvferry_handoff_early_bytes_total"
STREAMS = "kvferry_handoff_streams_total|"


LONG = 1900  # tokens: four steps


class Router:
    """What the router does with a prefill engine whose address it knows from an earlier request."""

    def __init__(self, prefill: LabEngine, decode: LabEngine) -> None:
        first = numbered(1, 40, seed=9)
        (params,) = prefill.prefill(first)
        decode.run(first, 1, [params])
        self.address = parse_lease_address(params)
        self.prefill, self.decode = prefill, decode

    def send(self, prompt: Sequence[int], max_tokens: int = MAX_TOKENS) -> tuple[str, str]:
        """Ask both; returns the ids of the request there and here."""
        stream = secrets.token_hex(16)
        follow = StreamAddress(stream, self.address.node_ids, self.address.endpoints)
        there = self.prefill.add(prompt, 1, {"do_remote_decode": True, **stream_order(stream)})
        return there, self.decode.add(prompt, max_tokens, build_stream(follow))

    def send_and_compute_half(self, asked: Sequence[Sequence[int]]) -> tuple[list[str], list[str]]:
        """Ask both, and let the prefill engine take two steps; it then stands still."""
        self.prefill.call("stepping", on=False)
        ids = [self.send(prompt) for prompt in asked]
        self.prefill.call("step", count=2)
        until(lambda: loading(self.decode) == len(asked), "all to be loading")
        return [there for there, _ in ids], [here for _, here in ids]


def loading(engine: LabEngine) -> int:
    return int(engine.state()["statuses"].count("WAITING_FOR_REMOTE_KVS"))


class Growth:
    """How much an engine's metrics grew since now."""

    def __init__(self, engine: LabEngine) -> None:
        self._engine = engine
        self._before = engine.state()["metrics"]

    def __call__(self, key: str) -> float:
        return float(self._engine.metric(key) - self._before.get(key, 0.0))


def read_early(prefill: LabEngine, decode: LabEngine, reference: Any, timeout_s: float = 60.0) -> None:
    """Send prompts to both until layers of one are read while it is computed: an engine that is held up
    reads all of it at its end."""
    router, before = Router(prefill, decode), decode.metric(EARLY)
    seeds = iter(range(40, 1000))

    def early() -> bool:
        asked = numbered(1, 1200, seed=next(seeds))
        there, here = router.send(asked[0])
        assert tokens_of(decode.wait([here])) == reference.tokens(asked)
        prefill.wait([there])
        return decode.metric(EARLY) > before

    until(early, "layers to be read while a prompt is computed", timeout_s)


def test_same_tokens_as_one_engine(prefill: LabEngine, decode: LabEngine, reference) -> None:
    router = Router(prefill, decode)
    asked = [prompt for prompt in prompts() if len(prompt) > 1]
    grown = Growth(decode)
    answers = []
    for start in range(0, len(asked), 4):
        ids = [router.send(prompt) for prompt in asked[start : start + 4]]
        answers += decode.wait([here for _, here in ids])
        prefill.wait([there for there, _ in ids])
        decode.all_blocks_free()
        assert decode.call("forget_prefixes")
    assert tokens_of(answers) == reference.tokens(asked)
    assert grown(LOADED) == len(asked)
    assert grown(HITS) == sum(len(prompt) for prompt in asked)
    if grown(EARLY) == 0:
        read_early(prefill, decode, reference)
    prefill.all_blocks_free()


def test_what_is_cached_here_is_not_read_again(prefill: LabEngine, decode: LabEngine, reference) -> None:
    router = Router(prefill, decode)
    asked = numbered(1, 300, seed=21)
    decode.run([asked[0][:200]], 1)
    grown = Growth(decode)
    _, here = router.send(asked[0])
    assert tokens_of(decode.wait([here])) == reference.tokens(asked)
    assert grown(HITS) == 300 - 192  # whole blocks of 32 were here
    prefill.all_blocks_free()


def test_prefill_gives_up_in_the_middle(prefill: LabEngine, decode: LabEngine, reference) -> None:
    router = Router(prefill, decode)
    asked = numbered(1, LONG, seed=22)
    grown = Growth(decode)
    there, here = router.send_and_compute_half(asked)
    prefill.call("abort", ids=there)
    prefill.call("stepping", on=True)
    assert tokens_of(decode.wait(here)) == reference.tokens(asked)
    assert grown(LOADED) == 0
    assert grown(FAILURES + "stale") == 1
    decode.all_blocks_free()
    prefill.all_blocks_free()


def test_prefill_is_killed_in_the_middle(lab: Lab, decode: LabEngine, reference) -> None:
    asked = numbered(4, 800, seed=23)
    with lab.engine("kv_producer") as prefill:
        router = Router(prefill, decode)
        grown = Growth(decode)
        _, here = router.send_and_compute_half(asked)
        prefill.signal(signal.SIGKILL)
        assert tokens_of(decode.wait(here)) == reference.tokens(asked)
        assert grown(LOADED) == 0
        assert grown(FAILED) == 4
        decode.all_blocks_free()


@pytest.mark.parametrize("when", ["while the prefill computes", "when it has finished"])
def test_decode_is_killed_amid_eight_streams(lab: Lab, decode: LabEngine, reference, when: str) -> None:
    """The prefill engine gives all blocks back, by the leases' end at the latest, and serves the next one."""
    asked = numbered(8, 600, seed=41)
    with lab.engine("kv_producer", options={"handoff.lease_s": 6}) as prefill:
        grown = Growth(prefill)
        with lab.engine("kv_consumer", options={"transfer.fault_plan": "*:delay=2000"}) as killed:
            there, _ = Router(prefill, killed).send_and_compute_half(asked)
            if when == "when it has finished":
                killed.signal(signal.SIGSTOP)  # else it may be done with one before the last one is finished
                prefill.call("stepping", on=True)
                prefill.wait(there)
                assert prefill.state()["free"] < prefill.free_at_start
            killed.signal(signal.SIGKILL)
        prefill.call("stepping", on=True)
        if when != "when it has finished":
            prefill.wait(there)
        prefill.all_blocks_free()
        _, here = Router(prefill, decode).send(asked[0])
        assert tokens_of(decode.wait([here])) == reference.tokens(asked[:1])
        prefill.all_blocks_free()
        prefill.counts(STREAMS + "finished", 9)
        ended = {
            reason: grown(f"kvferry_handoff_leases_ended_total|{reason}")
            for reason in ("done", "rejected", "aborted", "expired")
        }
        # Two first contacts and the last one; nobody came for the eight.
        assert grown("kvferry_handoff_leases_granted_total") == 8 + 3
        assert ended == {"done": 3, "rejected": 0, "aborted": 0, "expired": 8}
        assert grown(STREAMS + "opened") == grown(STREAMS + "finished") == 9


def test_prefill_begins_anew(prefill: LabEngine, decode: LabEngine, reference) -> None:
    router = Router(prefill, decode)
    asked = numbered(2, LONG, seed=24)
    grown, anew = Growth(decode), decode.metric(STREAMS + "begun_anew")
    _, here = router.send_and_compute_half(asked)
    prefill.call("preempt")
    prefill.call("stepping", on=True)
    assert tokens_of(decode.wait(here)) == reference.tokens(asked)
    assert grown(LOADED) == 2
    decode.counts(STREAMS + "begun_anew", anew + 1)
    prefill.all_blocks_free()


@pytest.mark.parametrize("when", ["before it has blocks", "while it reads"])
def test_decode_gives_up(prefill: LabEngine, decode: LabEngine, when: str) -> None:
    """The prefill engine's blocks are free as soon as it has finished, long before the lease's end."""
    router = Router(prefill, decode)
    asked = numbered(1, LONG, seed=25)
    decode.call("stepping", on=when == "while it reads")
    prefill.call("stepping", on=False)
    grown = Growth(prefill)
    _, here = router.send(asked[0])
    prefill.call("step", count=2)
    if when == "while it reads":
        until(lambda: loading(decode) == 1, "it to be loading")
    decode.call("abort", ids=[here])
    decode.call("stepping", on=True)
    decode.all_blocks_free()
    prefill.call("stepping", on=True)
    prefill.all_blocks_free()
    prefill.run(numbered(1, 40), 1)  # vLLM takes a connector's counts in when it steps
    assert grown("kvferry_handoff_leases_ended_total|expired") == 0


def test_a_stale_address_costs_one_prefill(
    lab: Lab, prefill: LabEngine, decode: LabEngine, reference
) -> None:
    with lab.engine("kv_producer") as old:
        router = Router(old, decode)
    router.prefill = prefill  # restarted: another node
    asked = numbered(1, 200, seed=26)
    grown = Growth(decode)
    there, here = router.send(asked[0])
    assert tokens_of(decode.wait([here])) == reference.tokens(asked)
    assert grown(FAILED) == 1
    (answer,) = prefill.wait([there])
    router.address = parse_lease_address(answer["params"])
    decode.run([numbered(1, 40, seed=27)[0]], 1, [answer["params"]])  # another prompt: only gives it back
    there, here = router.send(numbered(1, 200, seed=28)[0])
    assert tokens_of(decode.wait([here])) == reference.tokens(numbered(1, 200, seed=28))
    assert grown(LOADED) == 1
    prefill.all_blocks_free()


def test_the_pool_has_the_beginning(lab: Lab, prefill: LabEngine, reference, tmp_path: Path) -> None:
    """The first blocks come from the pool, the rest is read while the prefill engine computes it."""
    (prompt,) = numbered(1, 12 * BLOCK + 5, seed=31)
    options = {"pool.enabled": "on", "cluster.directory": str(tmp_path), "store.dram": 96 << 20}
    with lab.engine("kv_consumer", options=options) as decode:
        decode.run([prompt[: 6 * BLOCK + 1]], 1)
        until(lambda: decode.metric("kvferry_pool_saved_blocks_total|saved") == 6, "six blocks to be saved")
        decode.all_blocks_free()
        assert decode.call("forget_prefixes")
        router = Router(prefill, decode)
        grown = Growth(decode)
        _, here = router.send(prompt)
        assert tokens_of(decode.wait([here])) == reference.tokens([prompt])
        assert grown(HITS) == len(prompt)
        assert grown("kvferry_pool_loads_total|loaded") == 1
        assert grown(LOADED) == 1
        decode.all_blocks_free()
    prefill.all_blocks_free()


def test_nonsense_in_the_dictionary(prefill: LabEngine, decode: LabEngine, reference) -> None:
    part = build_stream(StreamAddress("a" * 32, ("b" * 32,), ("127.0.0.1:9",)))["kvferry"]
    bad = [
        {**part, "stream": "short"},
        {**part, "stream": 5},
        {**part, "node_ids": []},
        {**part, "endpoints": ["127.0.0.1:9", "127.0.0.1:10"]},
        {"stream": "a" * 32},
    ]
    grown = Growth(decode)
    asked = numbered(len(bad), 60, seed=29)
    answers = decode.run(asked, MAX_TOKENS, [{"do_remote_prefill": True, "kvferry": one} for one in bad])
    assert tokens_of(answers) == reference.tokens(asked)
    assert grown("kvferry_handoff_refused_requests_total|invalid_params") == len(bad)
    orders = [{"do_remote_decode": True, "kvferry": {"stream": one}} for one in ("short", 5, None)]
    finished = prefill.run(numbered(3, 60, seed=30), 1, orders)
    decode.run(numbered(3, 60, seed=30), 1, [answer["params"] for answer in finished])
    prefill.all_blocks_free()

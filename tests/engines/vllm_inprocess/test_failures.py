"""Whatever happens to the hand-off: right tokens, every block back, the decode engine goes on."""

from __future__ import annotations

import signal
import time

import pytest

from engines.engine_lab import Lab, LabEngine, Params
from engines.harness import until
from engines.vllm_inprocess.prompts import MAX_TOKENS, numbered, tokens_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]  # engines start in some, and machines may be slow

LOADED = "kvferry_handoff_loads_total|loaded"
FAILED = "kvferry_handoff_loads_total|failed"
FAILURES = "kvferry_handoff_load_failures_total|"
REFUSED = "kvferry_handoff_refused_requests_total|"
EXPIRED = "kvferry_handoff_leases_ended_total|expired"
LOAD_TIMEOUT_S = 30.0  # what fails sooner was not waited for
DELAY_S = (
    4.0  # of each transfer: so long has a test to do something meanwhile, on a machine that stands still
)
SLOW = {"transfer.fault_plan": f"*:delay={DELAY_S * 1000:.0f}"}


def loading(engine: LabEngine) -> int:
    return int(engine.state()["statuses"].count("WAITING_FOR_REMOTE_KVS"))


def begin_loads(engine: LabEngine, asked: list[list[int]], params: list[Params]) -> list[str]:
    """Add requests and step until all are loading. The engine then stands still: it notices no load's end."""
    engine.call("stepping", on=False)
    ids = [engine.add(prompt, MAX_TOKENS, one) for prompt, one in zip(asked, params, strict=True)]

    def all_loading() -> bool:
        engine.call("step", count=1)
        return loading(engine) == len(asked)

    until(all_loading, "all to be loading")
    return ids


def test_abort_while_loading(lab: Lab, prefill: LabEngine, reference) -> None:
    asked = numbered(4, 200)
    aborted = prefill.metric("kvferry_handoff_leases_ended_total|aborted")
    with lab.engine("kv_consumer", options=SLOW) as decode:
        ids = begin_loads(decode, asked, prefill.prefill(asked))
        decode.call("abort", ids=ids[:3])
        decode.call("stepping", on=True)
        assert tokens_of(decode.wait(ids[3:])) == reference.tokens(asked[3:])
        decode.all_blocks_free()
        prefill.all_blocks_free()
        assert decode.metric("kvferry_handoff_loads_total|cancelled") == 3
        assert prefill.metric("kvferry_handoff_leases_ended_total|aborted") - aborted == 3


def test_abort_before_it_is_scheduled(prefill: LabEngine, decode: LabEngine) -> None:
    asked = numbered(5)
    params = prefill.prefill(asked)
    assert prefill.state()["free"] < prefill.free_at_start
    rejected = prefill.metric("kvferry_handoff_leases_ended_total|rejected")
    decode.call("stepping", on=False)
    ids = [decode.add(prompt, MAX_TOKENS, one) for prompt, one in zip(asked, params, strict=True)]
    decode.call("abort", ids=ids)
    decode.call("stepping", on=True)
    prefill.all_blocks_free()
    assert prefill.metric("kvferry_handoff_leases_ended_total|rejected") - rejected == 5


def test_killed_in_mid_transfer_and_restarted(lab: Lab, reference) -> None:
    asked = numbered(8, 300)
    with lab.engine("kv_consumer", options=SLOW) as decode:
        with lab.engine("kv_producer") as prefill:
            ids = begin_loads(decode, asked, prefill.prefill(asked))
            prefill.signal(signal.SIGKILL)
            decode.call("stepping", on=True)
            assert tokens_of(decode.wait(ids)) == reference.tokens(asked)
            decode.all_blocks_free()
            assert decode.metric(FAILED) == 8
            assert decode.metric(LOADED) == 0
        with lab.engine("kv_producer") as again:
            more = numbered(2, 90)
            answers = decode.run(more, MAX_TOKENS, again.prefill(more))
            assert tokens_of(answers) == reference.tokens(more)
            assert decode.metric(LOADED) == 2
            again.all_blocks_free()


def test_decode_engine_killed_in_mid_transfer(lab: Lab) -> None:
    asked = numbered(3, 300)
    with (
        lab.engine("kv_producer", options={"handoff.lease_s": 2}) as prefill,
        lab.engine("kv_consumer", options=SLOW) as decode,
    ):
        begin_loads(decode, asked, prefill.prefill(asked))
        decode.signal(signal.SIGKILL)
        prefill.all_blocks_free()
        assert prefill.metric(EXPIRED) == 3


@pytest.mark.parametrize("protocol", ["auto", "tcp"])
def test_prefill_engine_that_stops_answering(lab: Lab, reference, protocol: str) -> None:
    asked = numbered(20, 100)
    options = {"protocol": protocol, "handoff.control_timeout_s": 2, "handoff.load_timeout_s": 6}
    short = {"handoff.lease_s": 10}
    with (
        lab.engine("kv_consumer", options=options) as decode,
        lab.engine("kv_producer", options=short) as prefill,
    ):
        first = numbered(1, 80)
        decode.run(first, 1, prefill.prefill(first))  # so that both are connected
        params = prefill.prefill(asked)
        prefill.signal(signal.SIGSTOP)
        decode.state()
        started = time.monotonic()
        answers = decode.run(asked, MAX_TOKENS, params)
        assert tokens_of(answers) == reference.tokens(asked)
        assert time.monotonic() - started < 90
        decode.all_blocks_free()
        state = decode.state()
        assert state["metrics"][FAILED] == 20
        prefill.signal(signal.SIGCONT)
        prefill.all_blocks_free(timeout_s=60.0)


def test_lease_that_runs_out_before_the_load(lab: Lab, decode: LabEngine, reference) -> None:
    asked = numbered(2, 100)
    failed = decode.metric(FAILURES + "stale")
    with lab.engine("kv_producer", options={"handoff.lease_s": 1}) as prefill:
        params = prefill.prefill(asked)
        prefill.all_blocks_free()
        prefill.run(numbered(8, 500, seed=3), 1)  # the blocks get other content
        answers = decode.run(asked, MAX_TOKENS, params)
        assert tokens_of(answers) == reference.tokens(asked)
        assert decode.metric(FAILURES + "stale") - failed == 2
        prefill.counts("kvferry_handoff_notices_ignored_total|late", 2)
        assert prefill.metric(EXPIRED) == 2
        assert prefill.metric("kvferry_handoff_notices_ignored_total|late") == 2


def test_waiting_requests_keep_their_leases(lab: Lab, reference) -> None:
    """A lease of three seconds outlives a decode engine that is busy for longer, since it is renewed."""
    with (
        lab.engine("kv_producer", options={"handoff.lease_s": 3}) as prefill,
        lab.engine("kv_consumer", max_num_seqs=1) as decode,
    ):
        busy = [decode.add(prompt, 1900) for prompt in numbered(4, 50)]
        asked = numbered(2, 100)
        params = prefill.prefill(asked)
        ids = [decode.add(prompt, MAX_TOKENS, one) for prompt, one in zip(asked, params, strict=True)]
        began, waited_s = time.monotonic(), 0.0
        while waited_s < 4.5:
            free, unfinished = prefill.state()["free"], len(decode.state()["statuses"])
            if unfinished < 3:  # a fast machine: the decode engine is no longer busy
                break
            assert free < prefill.free_at_start
            waited_s = time.monotonic() - began
            time.sleep(0.1)
        assert waited_s > 3.5  # longer than the lease
        decode.call("abort", ids=busy)
        assert tokens_of(decode.wait(ids)) == reference.tokens(asked)
        assert decode.metric(LOADED) == 2
        prefill.all_blocks_free()


@pytest.mark.parametrize("fault", ["*:cut", "*:short", "shm:refuse;tcp:refuse"])
def test_transfer_that_fails(lab: Lab, prefill: LabEngine, reference, fault: str) -> None:
    asked = numbered(3, 150)
    with lab.engine("kv_consumer", options={"transfer.fault_plan": fault}) as decode:
        assert decode.state()["policy"] == "recompute"
        answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
        assert tokens_of(answers) == reference.tokens(asked)
        assert decode.metric(FAILED) == 3
        decode.all_blocks_free()


def test_counting_failed_loads_as_loaded_would_show(lab: Lab, prefill: LabEngine, reference) -> None:
    """The control of the test above: with the check taken out, the tokens are wrong."""
    asked = numbered(3, 150)
    with lab.engine("kv_consumer", options={"transfer.fault_plan": "*:cut"}) as decode:
        decode.call("trust_everything")
        answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
        pairs = zip(tokens_of(answers), reference.tokens(asked), strict=True)
        assert not any(got == want for got, want in pairs)


def test_failed_loads_may_fail_the_request(lab: Lab, prefill: LabEngine) -> None:
    options = {"transfer.fault_plan": "*:cutx100", "handoff.load_failure": "fail"}
    asked = numbered(2, 150)
    with lab.engine("kv_consumer", options=options) as decode:
        assert decode.state()["policy"] == "fail"
        answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
        assert [answer["finish"] for answer in answers] == ["error", "error"]
        decode.all_blocks_free()
        assert decode.run(asked, 4)[0]["finish"] == "length"


def test_caches_that_do_not_fit(lab: Lab, prefill: LabEngine) -> None:
    asked = numbered(3, 150)
    expired = prefill.metric(EXPIRED)
    with lab.engine("kv_consumer", dtype="bfloat16") as decode:
        alone = tokens_of(decode.run(asked, MAX_TOKENS))
        decode.call("forget_prefixes")
        params = prefill.prefill(asked)
        started = time.monotonic()
        answers = decode.run(asked, MAX_TOKENS, params)
        assert tokens_of(answers) == alone
        assert time.monotonic() - started < LOAD_TIMEOUT_S
        assert decode.metric(FAILURES + "geometry_mismatch") == 3
        prefill.all_blocks_free()
        assert prefill.metric(EXPIRED) == expired  # they were given back
        log = decode.log.read_text()
        assert log.count("dtype: ours bfloat16, theirs float32") >= 1
        assert log.count("cannot be used") == 1


def test_whatever_a_client_puts_into_the_request(prefill: LabEngine, decode: LabEngine, reference) -> None:
    good = prefill.prefill(numbered(1, 70))[0]
    before = decode.metric(REFUSED + "invalid_params")
    bad = [
        {"do_remote_prefill": True},
        {**good, "kvferry": None},
        {**good, "kvferry": {**good["kvferry"], "lease": "../../etc/passwd"}},
        {**good, "remote_block_ids": [[-1]]},
        {**good, "remote_num_tokens": "many"},
        {"do_remote_decode": "yes", "do_remote_prefill": "yes"},
        {"do_remote_prefill": True, "do_remote_decode": True, "remote_host": 5},
    ]
    asked = numbered(len(bad), 60)
    answers = decode.run(asked, MAX_TOKENS, bad)
    assert tokens_of(answers) == reference.tokens(asked)
    assert decode.metric(REFUSED + "invalid_params") - before == 6
    # The lease is still there, and still good for the prompt it was made for.
    assert tokens_of(decode.run(numbered(1, 70), MAX_TOKENS, [good])) == reference.tokens(numbered(1, 70))


def test_another_prompts_blocks_are_never_used(prefill: LabEngine, decode: LabEngine, reference) -> None:
    one, other = numbered(2, 120)
    before, expired = decode.metric(REFUSED + "other_prompt"), prefill.metric(EXPIRED)
    params = prefill.prefill([one])
    answers = decode.run([other], MAX_TOKENS, params)
    assert tokens_of(answers) == reference.tokens([other])
    assert decode.metric(REFUSED + "other_prompt") - before == 1
    prefill.all_blocks_free()
    assert prefill.metric(EXPIRED) == expired  # it was given back


def test_forged_block_ids_and_addresses(prefill: LabEngine, decode: LabEngine, reference) -> None:
    asked = numbered(3, 70)
    params = prefill.prefill(asked)
    forged = [
        {**params[0], "remote_block_ids": [[4_000_000, 4_000_001, 4_000_002]]},
        {**params[1], "kvferry": {**params[1]["kvferry"], "endpoints": ["192.0.2.1:80"]}},
        {**params[2], "kvferry": {**params[2]["kvferry"], "node_ids": ["1" * 32]}},
    ]
    started = time.monotonic()
    answers = decode.run(asked, MAX_TOKENS, forged)
    assert tokens_of(answers) == reference.tokens(asked)
    assert time.monotonic() - started < LOAD_TIMEOUT_S
    state = decode.state()["metrics"]
    for code in ("out_of_range", "permission_denied", "identity_mismatch"):
        assert state[FAILURES + code] >= 1, code
    for one in params[1:]:  # nobody could give these back: now the right addresses do
        decode.run([numbered(1, 40)[0]], 1, [one])


def test_the_step_loop_is_not_held_up(lab: Lab, prefill: LabEngine) -> None:
    """A load that takes long must not lengthen a step of the requests that are being served meanwhile."""
    with lab.engine("kv_consumer", options=SLOW) as decode:
        served = decode.add(numbered(1, 40)[0], 1900)
        until(lambda: "RUNNING" in decode.state()["statuses"], "the request to run")
        asked = numbered(4, 200)
        params = prefill.prefill(asked)
        decode.state()  # steps are measured from here on
        ids = [decode.add(one, 4, each) for one, each in zip(asked, params, strict=True)]
        longest_s, most_loading = 0.0, 0
        ends = time.monotonic() + DELAY_S / 2
        while time.monotonic() < ends:
            state = decode.state()
            longest_s = max(longest_s, state["longest_step_s"])
            most_loading = max(most_loading, state["statuses"].count("WAITING_FOR_REMOTE_KVS"))
            time.sleep(0.05)
        assert most_loading == 4
        assert longest_s < DELAY_S / 2
        decode.call("abort", ids=[served])
        decode.wait(ids)
        assert decode.metric(LOADED) == 4

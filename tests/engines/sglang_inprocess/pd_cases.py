"""What prefill/decode disaggregation over KVFerry does on SGLang's own classes; one function for each case.

A program for SGLang's environment: runs all cases, writes a line of JSON for each.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engines.sglang_inprocess.pd_world import (
    FAILED,
    HOST,
    PAGES,
    WAITING,
    Request,
    World,
    prepare_sglang,
    until,
    world,
)

SOME, OTHERS = [3, 4, 9, 2], [7, 8, 1, 0]
MALFORMED = ([b""], [b"None"], [b"None", b"h", b"x"] * 8, [b"1", b"h", b"1"], [b"\xff" * 9] * 9, [b"ABORT"])

CASES: dict[str, Callable[[World], None]] = {}


def case(function: Callable[[World], None]) -> Callable[[World], None]:
    CASES[function.__name__] = function
    return function


@case
def pages_arrive_by_one_plan(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    request = Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    request.untouched()
    # Three runs of neighbouring pages in K and V of three layers, then a row of metadata.
    assert prefill[0].writes == [3 * 6, 1], prefill[0].writes


@case
def chunks_of_a_long_prompt_arrive(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    near, far = list(range(20)), list(range(PAGES - 1, 3, -1))
    request = Request(made, prefill, decode, near, far).receive()
    for begin in (0, 7, 14):
        assert request.outcome() == {WAITING}, "not before the last chunk"
        request.send(begin, begin + 7)
    request.done().untouched()
    assert len(prefill[0].writes) == 4


@case
def a_suffix_arrives_where_the_decode_server_has_the_prefix(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    request = Request(made, prefill, decode, SOME, OTHERS).receive(prefix=16)
    assert request.senders[0].pop_decode_prefix_len() == 16
    request.send().done().untouched()


@case
def nothing_but_metadata_goes_where_the_decode_server_has_all(made: World) -> None:
    request = Request(made, made.prefill(), made.decode(), [], []).receive(prefix=16).send()
    request.done().untouched()


@case
def heads_go_from_one_rank_to_two(made: World) -> None:
    prefill, decode = made.prefill(), made.decode(2)
    request = Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    request.untouched()
    # One plan for each decode rank: a piece for each token of each buffer.
    assert prefill[0].writes == [4 * 4 * 6, 1, 4 * 4 * 6, 1], prefill[0].writes


@case
def heads_go_from_two_ranks_to_one(made: World) -> None:
    prefill, decode = made.prefill(2), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done().untouched()


@case
def latents_go_from_one_rank_to_two(made: World) -> None:
    prefill, decode = made.prefill(mla=True), made.decode(2, mla=True)
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done().untouched()


@case
def states_arrive_with_the_last_pages(made: World) -> None:
    kinds = ("mamba", "swa")
    prefill, decode = made.prefill(states=kinds), made.decode(states=kinds)
    request = Request(made, prefill, decode, SOME, OTHERS)
    request.receive(states=[[4], [1, 3]]).send(0, 2).send(2, 4, [[2], [5, 0]]).done()
    for sent, got in zip(prefill[0].states["mamba"], decode[0].states["mamba"], strict=True):
        assert (got[4] == sent[2]).all()
        assert not got[[0, 1, 2, 3, 5]].any()
    for sent, got in zip(prefill[0].states["swa"], decode[0].states["swa"], strict=True):
        assert (got[[1, 3]] == sent[[5, 0]]).all()


@case
def a_state_that_does_not_fit_fails_its_request_only(made: World) -> None:
    prefill, decode = made.prefill(states=("mamba",)), made.decode(states=("mamba",))
    bad = Request(made, prefill, decode, SOME, OTHERS).receive(states=[[4]]).send(states=[[2, 3]])
    assert "single state index" in bad.failed()
    Request(made, prefill, decode, SOME, OTHERS).receive(states=[[4]]).send(states=[[2]]).done()


@case
def a_request_that_fails_says_why_and_harms_no_other(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    good = Request(made, prefill, decode, SOME, OTHERS).receive()
    bad = Request(made, prefill, decode, SOME, [15, 16, 17, PAGES + 5], row=2).receive().send()
    reason = bad.failed()
    assert "registered ranges" in reason, reason
    good.send().done().untouched()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()


@case
def many_requests_at_once_do_not_mix(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    requests = [
        Request(made, prefill, decode, [n, n + 8], [PAGES - 1 - 2 * n, PAGES - 2 - 2 * n], row=n % 8)
        for n in range(8)
    ]
    for request in requests:
        request.receive()
    for request in requests[::-1]:
        request.send()
    for request in requests:
        request.done()


@case
def an_abort_is_answered_when_nothing_can_be_written_any_more(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    request = Request(made, prefill, decode, SOME, OTHERS).receive().send(0, 2)
    until(lambda: prefill[0].writes, "the first chunk")
    receiver = request.receivers[0]
    receiver.abort()
    until(lambda: decode[0].manager.is_abort_release_safe(request.room, 1), "the answer to the abort")
    until(lambda: request.status() == {FAILED}, "the prefill server's failure")
    request.send(2, 4)
    Request(made, prefill, decode, SOME[:2], [20, 21]).receive().send().done()
    assert not decode[0].kv[0][OTHERS[2:]].any(), "written after the abort"


@case
def an_abort_before_anything_was_sent_ends_both_sides(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    request = Request(made, prefill, decode, SOME, OTHERS).receive()
    request.receivers[0].abort()
    assert request.outcome() == {FAILED}
    until(lambda: request.status() == {FAILED}, "the prefill server's failure")
    until(lambda: decode[0].manager.is_abort_release_safe(request.room, 1), "the answer to the abort")
    request.send()
    Request(made, prefill, decode, SOME[:1], [20]).receive().send().done().untouched()


@case
def an_abort_of_the_prefill_server_reaches_the_decode_server(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    request = Request(made, prefill, decode, SOME, OTHERS).receive().send(0, 2)
    until(lambda: prefill[0].writes, "the first chunk")
    request.senders[0].abort()
    assert "aborted the request" in request.failed()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()


@case
def a_decode_server_that_comes_after_the_abort_is_told_of_it(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    request = Request(made, prefill, decode, SOME, OTHERS)
    request.senders[0].abort()
    request.senders[0].clear()
    assert request.status() == {FAILED}
    assert "aborted the request" in request.receive().failed()
    assert request.room not in prefill[0].manager.transfer_infos
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()


@case
def aborts_that_cross_the_decode_servers_message_reach_it(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    for turn in range(40):
        request = Request(made, prefill, decode, SOME, OTHERS)
        crossing = threading.Timer(turn * 0.0002, request.senders[0].abort)
        crossing.start()
        request.receive()
        crossing.join(60)
        assert "aborted the request" in request.failed()
        request.senders[0].clear()
        assert request.room not in prefill[0].manager.transfer_infos


@case
def late_messages_of_a_request_that_is_over_change_nothing(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    request = Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    for end in (*request.senders, *request.receivers):
        end.clear()
    prefill[0].manager.send_kv_status_message(
        targets=[(HOST, decode[0].manager.rank_port)], bootstrap_room=request.room, status=FAILED
    )
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    assert request.room not in decode[0].manager.request_status
    assert request.room not in decode[0].manager.failure_records


@case
def messages_of_no_known_form_are_dropped(made: World) -> None:
    import zmq

    prefill, decode = made.prefill(), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    session = decode[0].manager.get_session_id().encode()
    stranger = [b"77", HOST.encode(), b"1", b"0" * 32 + b"@127.0.0.1:1", b"\0" * 8, b"1", b"", b"1", b"0"]
    own = [b"78", HOST.encode(), b"1", session, b"\0" * 8, b"not a number", b"", b"1", b"0"]
    with zmq.Context() as context:
        for rank in (*prefill, *decode):
            with context.socket(zmq.PUSH) as out:
                out.setsockopt(zmq.LINGER, 5000)
                out.connect(f"tcp://{HOST}:{rank.manager.rank_port}")
                for message in (*MALFORMED, stranger, own, [b"AUX_DATA", b"1", b"0", b"9999", b"", b"x"]):
                    out.send_multipart(list(message))
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    assert not {77, 78} & set(prefill[0].manager.transfer_infos)


@case
def a_decode_server_that_is_not_known_is_told_so(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    prefill[0].manager.decode_kv_args_table.clear()  # as after a restart
    request = Request(made, prefill, decode, SOME, OTHERS)
    manager = decode[0].manager
    from kvferry_sglang.pd import conn

    receiver = conn.KVFerryKVReceiver(manager, made.address, request.room)
    receiver.init(0)
    receiver.send_metadata(request.far, 1, None, 0)
    request.receivers.append(receiver)
    assert "started anew" in request.failed()


@case
def the_end_of_a_prefill_process_fails_its_requests_at_once(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    request = Request(made, prefill, decode, SOME, OTHERS).receive()
    prefill[0].manager.engine.close()  # what a process's end does to its connections
    assert "Lost connection" in request.failed()
    assert made.address not in decode[0].manager.prefill_info_table, "the next request looks anew"


@case
def a_decode_process_that_is_gone_fails_its_requests_only(made: World) -> None:
    prefill, gone, there = made.prefill(), made.decode(), made.decode()
    session = gone[0].manager.get_session_id()
    for decode in (gone, there):
        Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    request = Request(made, prefill, gone, SOME, OTHERS).receive()
    gone[0].manager.engine.close()
    request.send()
    until(lambda: request.status() == {FAILED}, "the prefill server's failure")
    assert session in prefill[0].manager.failed_sessions
    Request(made, prefill, there, SOME, OTHERS).receive().send().done()
    assert there[0].manager.get_session_id() not in prefill[0].manager.failed_sessions


@case
def a_lost_connection_is_made_anew(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    request = Request(made, prefill, decode, SOME, OTHERS)
    for peer in prefill[0].manager.engine.engine.peers():
        peer.close()
    until(lambda: made.address not in decode[0].manager.prefill_info_table, "the loss being noticed")
    request.receive().send().done()


@case
def servers_change_their_roles_over_the_same_memory(made: World) -> None:
    first, second = made.prefill(), made.decode()
    Request(made, first, second, SOME, OTHERS).receive().send().done()
    for rank in (*first, *second):
        threads = threading.active_count()
        rank.end()
        assert threading.active_count() < threads
    made.ranks.clear()
    made.bootstrap.prefill_port_table.clear()
    prefill, decode = made.prefill(), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done().untouched()


@case
def every_buffer_is_registered_once(made: World) -> None:
    prefill, decode = made.prefill(states=("mamba",)), made.decode(states=("mamba",))
    for _ in range(5):
        Request(made, prefill, decode, SOME, OTHERS).receive(states=[[1]]).send(states=[[1]]).done()
    (peer,) = prefill[0].manager.engine.engine.peers()
    assert len(peer.regions) == 6 + 1 + 2, peer.regions
    assert {info.access for info in peer.regions} == {"w"}


@case
def pages_of_another_size_are_refused_with_the_reason(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()
    info = prefill[0].manager.decode_kv_args_table[decode[0].manager.get_session_id()]
    info.dst_kv_item_len *= 2
    assert (
        "must be the same on both" in Request(made, prefill, decode, SOME, OTHERS).receive().send().failed()
    )


@case
def a_prefill_server_that_does_not_fit_fails_its_requests_only(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    made.bootstrap.page_size = 32
    request = Request(made, prefill, decode, SOME, OTHERS)
    manager = decode[0].manager
    assert manager.try_ensure_parallel_info(made.address) is False
    from kvferry_sglang.pd import conn

    receiver = conn.KVFerryKVReceiver(manager, made.address, request.room)
    request.receivers.append(receiver)
    receiver.abort()  # what SGLang's scheduler does after some attempts
    assert "Page size mismatch" in request.failed()
    made.bootstrap.page_size = 4
    Request(made, prefill, decode, SOME, OTHERS).receive().send().done()


@case
def a_prefill_process_that_was_started_anew_is_used_at_once(made: World) -> None:
    first, decode = made.prefill(), made.decode()
    Request(made, first, decode, SOME, OTHERS).receive().send().done()
    first[0].manager.engine.close()  # it is killed
    until(lambda: made.address not in decode[0].manager.prefill_info_table, "the loss being noticed")
    second = made.prefill()  # the same address, other ports
    second[0].fill(7)
    Request(made, second, decode, SOME, OTHERS).receive().send().done()


@case
def a_transfer_of_a_large_prompt_is_one_plan_with_few_pieces(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    pages = list(range(PAGES))
    Request(made, prefill, decode, pages, pages).receive().send().done()
    assert prefill[0].writes == [6, 1]
    assert np.array_equal(prefill[0].kv[0], decode[0].kv[0])


def _free_port() -> int:
    with socket.socket() as place:
        place.bind((HOST, 0))
        return int(place.getsockname()[1])


def _run(name: str, port: int) -> dict[str, Any]:
    began = time.monotonic()
    try:
        with world(port) as made:
            CASES[name](made)
        error = ""
    except Exception:  # noqa: BLE001  (told to the test that asks for this case)
        error = traceback.format_exc()
    return {"case": name, "error": error, "seconds": round(time.monotonic() - began, 2)}


def main() -> None:
    port = _free_port()
    prepare_sglang(port)
    for name in sys.argv[1:] or CASES:
        sys.stdout.write(json.dumps(_run(name, port)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

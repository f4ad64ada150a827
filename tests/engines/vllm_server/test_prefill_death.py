"""kill -9 of the prefill server in mid-transfer, and its return: answers stay right, decode lives on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.harness import (
    Answer,
    Fleet,
    completion_body,
    is_idle,
    make_fleet,
    metrics,
    running_fleet,
    show_logs,
    stream,
    until,
)
from engines.vllm_server.questions import token_ids

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

# Every slice takes 300 ms longer, so that a kill falls into a transfer and not between two.
SLOW = {"KVFERRY_TRANSFER_FAULT_PLAN": "*:delay=300"}
ROUNDS = 3  # at most; one is enough when its kill fell into a transfer


@pytest.fixture(scope="module")
def slow_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(make_fleet("tiny", tmp_path_factory.mktemp("death"), env=SLOW)) as fleet:
        yield fleet


class Load:
    """Eight users who each ask long questions one after the other until told to stop."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._end = threading.Event()
        self._pool = ThreadPoolExecutor(8)
        self._futures = [self._pool.submit(self._user, number) for number in range(8)]

    def _user(self, number: int) -> list[tuple[dict[str, object], Answer]]:
        done = []
        question = 0
        while not self._end.is_set():
            question += 1
            length = 100 + (number * 211 + question * 97) % 1500
            body = completion_body(token_ids(length, seed=number * 1000 + question), 8, ignore_eos=True)
            done.append((body, stream(self._fleet.router.url, body)))
        return done

    def finish(self) -> list[tuple[dict[str, object], Answer]]:
        """Everything that was asked and answered; raises what a user got instead of an answer."""
        self._end.set()
        answers = [pair for future in self._futures for pair in future.result(timeout=300)]
        self._pool.shutdown()
        return answers


def failed_loads(fleet: Fleet) -> float:
    return metrics(fleet.decode[0].url).total("vllm:kvferry_handoff_loads_total", outcome="failed")


def kill_prefill_under_load(fleet: Fleet) -> list[tuple[dict[str, object], Answer]]:
    """What eight users were answered while the prefill server served, died and stayed away."""
    before = fleet.moved_tokens()
    load = Load(fleet)
    until(lambda: fleet.moved_tokens() > before, "KV is being moved")
    time.sleep(0.5)
    fleet.prefill[0].kill()
    time.sleep(2.0)
    return load.finish()


def restart_prefill(fleet: Fleet) -> None:
    prefill = fleet.prefill[0]
    if not prefill.running:
        prefill.start().wait_ready()


def test_kill_of_prefill_in_mid_transfer(slow_fleet: Fleet) -> None:
    decode = slow_fleet.decode[0]
    decode_pids = decode.pids()
    for _ in range(ROUNDS):
        restart_prefill(slow_fleet)
        answers = kill_prefill_under_load(slow_fleet)
        assert len(answers) >= 8
        wrong = [body for body, answer in answers if answer.token_ids != slow_fleet.expected(body).token_ids]
        assert wrong == [], show_logs(slow_fleet.servers)
        if failed_loads(slow_fleet) > 0:
            break
    assert failed_loads(slow_fleet) > 0, "no kill fell into a transfer"
    assert decode.pids() == decode_pids, show_logs([decode])
    until(lambda: is_idle(decode), "every block of the decode server is free")


def test_prefill_that_came_back_is_used_again(slow_fleet: Fleet) -> None:
    def moves_again() -> bool:
        before = slow_fleet.moved_tokens()
        body = completion_body(token_ids(400, seed=time.monotonic_ns()), 4, ignore_eos=True)
        assert stream(slow_fleet.router.url, body).token_ids == slow_fleet.expected(body).token_ids
        return slow_fleet.moved_tokens() > before

    restart_prefill(slow_fleet)
    until(moves_again, "the restarted prefill server hands over KV", timeout_s=90.0)
    for server in (*slow_fleet.prefill, *slow_fleet.decode):
        until(lambda server=server: is_idle(server), f"every block of {server.name} is free")

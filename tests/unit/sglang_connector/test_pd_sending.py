"""How sends end, and what SGLang is told of the pages of a request that failed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from kvferry.errors import PeerLostError
from kvferry_sglang.pd.engine import DONE, FAILED, UNSETTLED
from kvferry_sglang.pd.sending import LastSend, one_request_only, worst_of

LATE = PeerLostError("the connection broke; bytes of this write may still land: no answer")


class Manager:
    """The part of a manager that sends: whatever it is given comes true."""

    def __init__(self) -> None:
        self.last_send = LastSend()
        self.failures: list[tuple[str, Exception]] = []
        self.engine = SimpleNamespace(note_failure=lambda *failure: self.failures.append(failure))

    @one_request_only
    def send(self, session: str, *ends: int | Exception) -> int:
        status = DONE
        for end in ends:
            if isinstance(end, Exception):
                raise end
            status = self.last_send.add(end) or status
        return status


@pytest.mark.parametrize(
    ("ends", "status", "over"),
    [
        ([DONE], DONE, False),
        ([FAILED], FAILED, True),
        ([UNSETTLED], UNSETTLED, False),
        ([UNSETTLED, FAILED], UNSETTLED, False),  # SGLang's own sends go on after a failure
        ([UNSETTLED, ValueError("a bug")], FAILED, False),
        ([ValueError("a bug")], FAILED, True),
        ([LATE], UNSETTLED, False),
        ([7], 7, True),
    ],
)
def test_a_send_is_over_only_if_each_of_its_writes_is(
    ends: list[int | Exception], status: int, over: bool
) -> None:
    manager = Manager()
    assert (manager.send("session", *ends) == DONE) == (status == DONE)
    assert manager.last_send.take_over() == over
    assert not manager.last_send.take_over(), "what is not known to be over is not"


def test_another_send_to_the_same_server_changes_nothing() -> None:
    manager = Manager()
    assert manager.send("session", UNSETTLED) == UNSETTLED
    with ThreadPoolExecutor(1) as other:
        assert other.submit(manager.send, "session", DONE).result(60) == DONE
        assert other.submit(manager.send, "session", FAILED).result(60) == FAILED
        assert not manager.last_send.take_over()
        assert other.submit(manager.last_send.take_over).result(60)


def test_what_a_send_raises_is_told_of_its_session() -> None:
    manager = Manager()
    error = ValueError("a bug")
    assert manager.send("session", error) == FAILED
    assert manager.failures == [("session", error)]


def test_writes_that_make_one_send_are_all_waited_for() -> None:
    with ThreadPoolExecutor(2) as threads:
        writes = [threads.submit(lambda end=end: end) for end in (DONE, FAILED, UNSETTLED)]
        for write in writes:
            write.exception(30)
        assert worst_of(writes) == UNSETTLED
    not_begun: Future[int] = Future()
    failed: Future[int] = Future()
    failed.set_result(FAILED)
    assert worst_of([failed, not_begun]) == FAILED
    assert not_begun.cancelled()

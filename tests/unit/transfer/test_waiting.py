from __future__ import annotations

import time

import pytest

from kvferry.errors import InvalidArgumentError
from kvferry.transfer._waiting import wait_in_slices


def test_wait_in_slices_returns_the_first_true_answer():
    answers = iter([None, None, "here"])
    assert wait_in_slices(lambda _slice: next(answers), 60.0) == "here"


def test_wait_in_slices_asks_once_without_time():
    asked = []
    assert not wait_in_slices(asked.append, 0.0)
    assert asked == [0.0]


def test_wait_in_slices_never_waits_longer_than_allowed():
    asked = []

    def wait(slice_s):
        asked.append(slice_s)
        time.sleep(slice_s)
        return False

    started = time.monotonic()
    assert wait_in_slices(wait, 0.5) is False
    assert time.monotonic() - started >= 0.49
    assert sum(asked) <= 0.5 + 1e-9
    assert max(asked) <= 0.2


def test_wait_in_slices_stops_when_told_to_give_up():
    assert wait_in_slices(lambda _slice: None, 60.0, give_up=lambda: True) is None


def test_wait_in_slices_refuses_a_time_that_never_ends():
    with pytest.raises(InvalidArgumentError, match="nan"):
        wait_in_slices(lambda _slice: None, float("nan"))

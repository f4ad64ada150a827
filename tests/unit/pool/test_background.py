from __future__ import annotations

import threading

import pytest

from kvferry.errors import DeadlineExceededError
from kvferry.pool import BackgroundJobs
from kvferry.testing.waiting import wait_until

WAIT_S = 20.0


class Held:
    """A save that is under way until it is let go."""

    def __init__(self):
        self.started, self.go_on = threading.Event(), threading.Event()

    def __call__(self):
        self.started.set()
        return self.go_on.wait(WAIT_S)


@pytest.fixture
def jobs():
    made = BackgroundJobs()
    yield made
    made.close()


@pytest.fixture
def held(jobs):
    """A save of the jobs' that runs."""
    made = Held()
    jobs.save(made)
    assert made.started.wait(WAIT_S)
    yield made
    made.go_on.set()


def completed(jobs, count):
    """What so many saves came to, once they have ended."""
    wait_until(lambda: jobs.completed_saves() >= count, WAIT_S, "the saves' ends")
    return [jobs.pop_completed_save() for _ in range(jobs.completed_saves())]


def failing():
    raise OSError("a save that fails")


def test_what_saves_came_to_is_told_in_their_order(jobs):
    for job in (lambda: True, lambda: False, failing, lambda: True):
        jobs.save(job)
    assert completed(jobs, 4) == [True, False, False, True]
    jobs.nothing_to_save()
    assert completed(jobs, 1) == [True]


def test_a_reset_while_a_job_runs_raises_and_nothing_queued_runs_afterwards(jobs, held):
    ran = []
    jobs.save(lambda: ran.append("save") is None)
    with pytest.raises(DeadlineExceededError, match="still use the KV cache"):
        jobs.reset(0.01)
    held.go_on.set()
    jobs.save(lambda: False)
    assert completed(jobs, 1) == [False]  # the one of after the reset, and none of before
    assert ran == []


def test_a_reset_waits_for_what_runs_and_forgets_it(jobs, held):
    ended = threading.Thread(target=lambda: jobs.reset(WAIT_S))
    ended.start()
    held.go_on.set()
    ended.join(WAIT_S)
    assert not ended.is_alive()
    jobs.reset(WAIT_S)
    assert jobs.completed_saves() == 0


def test_a_load_that_is_queued_is_dropped_too(jobs):
    blocker, ran = Held(), []
    jobs.load(blocker)
    assert blocker.started.wait(WAIT_S)
    jobs.load(lambda: ran.append("load"))
    with pytest.raises(DeadlineExceededError):
        jobs.reset(0.01)
    done = threading.Event()
    jobs.load(done.set)
    blocker.go_on.set()
    assert done.wait(WAIT_S)
    assert ran == []

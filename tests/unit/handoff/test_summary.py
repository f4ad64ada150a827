from __future__ import annotations

import logging

from _handoff import Clock
from kvferry.errors import CancelledError, StaleError
from kvferry.handoff import LoadResult
from kvferry.handoff.summary import Summary


def result(error=None, size=0, seconds=0.1):
    return LoadResult("r", error, size, seconds, "shm", "127.0.0.1:1")


def test_one_line_per_interval_with_activity(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    summary = Summary(60.0, clock=clock)
    summary.add([result(size=100), result(size=50, seconds=0.3), result(StaleError("late"))], {"expired": 2})
    summary.add([result(CancelledError("gone"))], {"granted": 3, "done": 1, "renewals": 7})
    summary.tick()
    assert caplog.messages == []
    clock.now += 61
    summary.tick()
    summary.tick()
    clock.now += 61
    summary.tick()
    assert caplog.messages == [
        "last 60 s: loaded=2 failed=1 cancelled=1 shm_bytes=150 load_p50_s=0.3000 load_max_s=0.3000 "
        "leases=3 fetched=1 expired=2"
    ]

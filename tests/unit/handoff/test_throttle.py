from __future__ import annotations

import logging

from _handoff import Clock
from kvferry.handoff import WarningThrottle


def test_one_warning_per_key_and_interval():
    clock = Clock()
    throttle = WarningThrottle(10.0, clock=clock)
    assert [throttle.level(key) for key in ("a", "a", "b")] == [
        logging.WARNING,
        logging.DEBUG,
        logging.WARNING,
    ]
    clock.now += 9.9
    assert throttle.level("a") == logging.DEBUG
    clock.now += 0.1
    assert throttle.level("a") == logging.WARNING

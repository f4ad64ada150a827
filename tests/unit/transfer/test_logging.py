from __future__ import annotations

import logging
import threading

from kvferry import _native
from kvferry.transfer import Engine, _logging


def test_log_queue_delivers_lines_in_order():
    queue = _native.LogQueue(10)
    queue.push(20, "one key=1")
    queue.push(30, "two")
    assert queue.drain(5.0) == [(20, "one key=1"), (30, "two")]
    assert queue.drain(0.0) == []


def test_log_queue_drops_and_counts_what_does_not_fit():
    queue = _native.LogQueue(2)
    for number in range(5):
        queue.push(20, str(number))
    assert queue.drain(0.0) == [(20, "0"), (20, "1"), (30, "log_lines_dropped count=3")]


def test_log_queue_close_ends_the_wait():
    queue = _native.LogQueue(2)
    results = []
    thread = threading.Thread(target=lambda: results.append(queue.drain(60.0)))
    thread.start()
    queue.close()
    thread.join(60)
    assert results == [[]]


def test_native_lines_reach_the_logger_with_their_level(caplog):
    with caplog.at_level(logging.DEBUG, logger="kvferry.transfer"), Engine():
        _logging.flush()
    lines = [record for record in caplog.records if record.name == "kvferry.transfer"]
    assert lines, "an engine logs its start"
    assert all(record.levelno in (10, 20, 30, 40) for record in lines)


def test_native_lines_below_the_loggers_level_are_not_made(caplog):
    with caplog.at_level(logging.ERROR, logger="kvferry.transfer"):
        with Engine():
            pass
        _logging.flush()
    assert not [record for record in caplog.records if record.name == "kvferry.transfer"]

"""Case 2.2: processes that start at the same instant pick the same port and read each other's memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from _engines import options
from kvferry.errors import IdentityMismatchError
from kvferry.transfer import Engine

WORKERS = 50
SCRIPT = Path(__file__).parents[1] / "_many_workers.py"


@pytest.mark.slow
def test_fifty_workers_started_at_once_never_meet_the_wrong_memory(extent):
    for _round in range(extent.times(1, 20)):
        done = subprocess.run(
            [sys.executable, SCRIPT, str(WORKERS)], capture_output=True, text=True, timeout=110, check=False
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert len(set(result["endpoints"])) == WORKERS
        assert len(set(result["nodes"])) == WORKERS
        assert result["seen"] == [list(range(WORKERS))] * WORKERS


@pytest.mark.slow
def test_engines_started_and_closed_in_rounds_always_have_ports_of_their_own():
    for _round in range(20):
        engines = [Engine(options("tcp")) for _ in range(WORKERS)]
        try:
            assert len({engine.endpoint.port for engine in engines}) == WORKERS
        finally:
            for engine in engines:
                engine.close()


def test_a_read_that_reaches_another_process_is_refused_in_the_handshake():
    with Engine(options("tcp")) as first, Engine(options("tcp")) as second, Engine(options("tcp")) as reader:
        with pytest.raises(IdentityMismatchError) as caught:
            reader.connect(second.endpoint, expected=first.node_id)
        assert first.node_id in str(caught.value)
        assert second.node_id in str(caught.value)

"""Case 2.8: one bad link poisons the session for ever."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from _engines import options, pattern, pieces
from _netns import Host, Hosts, two_hosts
from _rail_relays import RailRelays
from kvferry.transfer import Engine, PeerStats

RAILS = ("127.0.0.2", "127.0.0.3")
SIZE, BLOCK = 4 << 20, 65536
PATIENCE_S = 40.0


class Load:
    """Reads the peer's memory over and over; every read must succeed and be right."""

    def __init__(self, near: Engine, far: Engine, links: RailRelays, timeout_s: float) -> None:
        self.engine, self.timeout_s = near, timeout_s
        self.source, self.target = pattern(SIZE), np.zeros(SIZE, dtype=np.uint8)
        there = far.register(self.source, name="far")
        here = near.register(self.target, name="near")
        self.peer = near.connect(links.endpoint)
        rows = pieces(*((here.id, there.id, at, SIZE - BLOCK - at, BLOCK) for at in range(0, SIZE, BLOCK)))
        self.plan = near.prepare(self.peer, rows, "read")

    def read(self) -> None:
        """Once."""
        self.target[:] = 0
        transfer = self.engine.submit(self.plan, timeout_s=self.timeout_s)
        assert transfer.wait()
        assert transfer.error is None, transfer.error
        blocks = (-1, BLOCK)
        assert np.array_equal(self.target.reshape(blocks), self.source.reshape(blocks)[::-1])

    def until(self, condition: Callable[[PeerStats], bool]) -> PeerStats:
        """Read until `condition` holds; the statistics of then."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.read()
            if condition(stats := self.peer.stats()):
                return stats
        raise AssertionError(f"not met in {PATIENCE_S} s: {self.peer.transport_note}")


@contextlib.contextmanager
def two_rails(timeout_s: float) -> Iterator[tuple[Load, RailRelays]]:
    """Engines with two rails, each of which runs through a relay, and a load over them."""
    chosen = options("tcp", rails=RAILS, tcp_streams=1)
    with Engine(chosen) as far, RailRelays(far.endpoint) as links, Engine(chosen) as near:
        load = Load(near, far, links, timeout_s)
        load.until(lambda stats: all(rail.bytes > 0 for rail in stats.rails))
        yield load, links


@pytest.mark.parametrize("how", ["cut", "freeze"])
def test_traffic_leaves_a_bad_rail_and_comes_back_without_a_failed_request(how):
    with two_rails(timeout_s=9.0) as (load, links):
        assert len(load.peer.stats().rails) == 2
        getattr(links.rails[0], how)()
        down = load.until(lambda stats: stats.rails[0].set_aside)
        assert down.rails[0].failures >= 1
        assert "set aside" in load.peer.transport_note
        load.until(lambda stats: stats.rails[1].bytes >= down.rails[1].bytes + 4 * SIZE)
        links.rails[0].restore()
        back = load.until(lambda stats: stats.rails[0].recoveries >= 1)
        load.until(lambda stats: stats.rails[0].bytes > back.rails[0].bytes)
        assert not load.peer.stats().rails[0].set_aside
        assert load.peer.stats().rail_switches >= 2
        counters = load.engine.counters()
        assert counters["rail_recoveries_total"] >= 1
        assert counters["rail_switches_total"] >= 2
        assert counters["failed_transfers_total"] == 0


# ---- the same with a link that silently swallows everything, between two network namespaces

SECRET = "sixteen bytes or more"
READER = Path(__file__).parents[1] / "_rail_reader.py"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two network namespaces with two cables between them."""
    with two_hosts("rail0", "rail1") as made:
        yield made


@contextlib.contextmanager
def process_in(host: Host, *command: str) -> Iterator[Callable[[], Any]]:
    """A Python process in a namespace; the next JSON line that it writes. Ends it by ending its input."""
    process = subprocess.Popen(
        [*host.prefix, sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def next_line() -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the process ended with status {process.wait(60)}"
        return json.loads(line)

    try:
        yield next_line
    finally:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.stdout.close()
        process.wait(60)


def until(next_line: Callable[[], Any], condition: Callable[[Any], bool]) -> Any:
    """Take lines until one fulfils `condition`; no read may fail meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        line = next_line()
        assert line["error"] == ""
        if condition(line):
            return line
    raise AssertionError(f"not met in {PATIENCE_S} s: {line}")


def test_a_pulled_cable_fails_no_request_and_its_rail_returns(hosts):
    near, far = hosts.near, hosts.far
    common = {
        "transports": ["tcp"], "allow_fallback": False, "cluster_secret": SECRET, "rails": ["rail0", "rail1"],
        "tcp_streams": 1, "link_timeout_s": 3.0,
    }  # fmt: skip
    serving = json.dumps(
        {
            "options": {**common, "bind": f"{far.addresses[0]}:0"},
            "regions": [{"name": "m", "length": SIZE, "access": "r"}],
        }
    )
    with process_in(far, "-m", "kvferry.testing.engine_process", serving) as owner:
        reading = json.dumps(
            {
                "options": {**common, "bind": f"{near.addresses[0]}:0"},
                "endpoint": owner()["endpoint"],
                "region": "m",
                "length": SIZE,
            }
        )
        with process_in(near, str(READER), reading) as reader:
            names = [
                rail[0] for rail in until(reader, lambda line: all(r[1] > 0 for r in line["rails"]))["rails"]
            ]
            assert [name.split()[1] for name in names] == list(near.addresses)
            hosts.pull("rail1")
            down = until(reader, lambda line: line["rails"][1][2])
            until(reader, lambda line: line["rails"][0][1] > down["rails"][0][1] + 4 * SIZE)
            hosts.plug_in("rail1")
            back = until(reader, lambda line: line["rails"][1][3] >= 1)
            until(reader, lambda line: line["rails"][1][1] > back["rails"][1][1])
            assert back["switches"] >= 2

"""LMCache's server over a node: a second server hits what the first one stored, and what fails is a miss.

Simulated engines of LMCache's own benchmark store chunks, read them back and compare their checksums.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tools.servers import Server

from engines.lmcache.conftest import LMCache
from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

START_S = 300.0
PATIENCE_S = 60.0
CHUNKS = 4  # of a session: 256 tokens in chunks of 64


class Report(NamedTuple):
    """What the benchmark said: by session the chunks that its first look-up hit, and its last checksum."""

    hits: list[int]
    checksums: list[str]
    matches: int


@contextmanager
def running(lmcache: LMCache, name: str, adapter: dict[str, Any]) -> Iterator[tuple[Server, int]]:
    server, port = lmcache.server(name, adapter)
    try:
        yield server.start().wait_ready(START_S), port
    finally:
        server.stop()


def drive(lmcache: LMCache, server: Server, port: int, first: int = 0, end: int = 3) -> Report:
    """Let simulated engines store and read back the sessions `first` to `end`, without the last."""
    output = lmcache.command(
        "bench", "server", "--rpc-url", f"tcp://127.0.0.1:{port}", "--url", server.url, "--mode", "cpu",
        "--transfer-mode", "engine_driven", "--num-tokens", 64 * CHUNKS, "--interval", 0.01,
        "--kvcache-shape-spec", "(2,64,16,2,32):float16:4", "--start", first, "--end", end,
    )  # fmt: skip
    hits = re.findall(rf"/cold\] LOOKUP: (\d+)/{CHUNKS}", output)
    checksums = re.findall(r"/warm\] CHECKSUM: (\w+)", output)
    assert len(hits) == len(checksums) == end - first, output
    return Report([int(hit) for hit in hits], checksums, output.count("CHECKSUM MATCH OK"))


def counts(server: Server) -> dict[str, Any]:
    """What our adapter reports of itself on the server's status page."""

    def find(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict) and value.get("type") == "kvferry":
            yield value
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from find(each)

    with urllib.request.urlopen(server.url + "/status", timeout=PATIENCE_S) as answer:
        [found] = find(json.load(answer))
    return found


def fill(lmcache: LMCache) -> Report:
    """Have a first server store three sessions, and wait until all of it is in the node."""
    with running(lmcache, "first", lmcache.l2()) as (server, port):
        report = drive(lmcache, server, port)
        assert report.hits == [0, 0, 0]
        assert report.matches == 3
        distinct = CHUNKS * len(set(report.checksums))  # the benchmark makes some contents twice

        def all_there() -> bool:
            found = counts(server)
            return int(found.get("saved", 0)) + int(found.get("existed", 0)) >= distinct

        wait_until(all_there, PATIENCE_S, "all chunks saved")
        assert not [name for name in counts(server) if name.startswith("failed")]
    return report


def test_a_second_server_hits_what_the_first_one_stored(lmcache: LMCache) -> None:
    stored = fill(lmcache)
    with running(lmcache, "second", lmcache.l2()) as (server, port):
        again = drive(lmcache, server, port)
        found = counts(server)
    assert again.hits == [CHUNKS] * 3
    assert again.checksums == stored.checksums
    assert found["is_healthy"]
    assert found["loaded"] >= 3 * CHUNKS
    assert not [name for name in found if name.startswith("failed")]
    # LMCache's own fault injector lets every load of a session's second chunk fail.
    faulty = {"type": "fault_inject", "inner": lmcache.l2(), "gap_indices": [1]}
    with running(lmcache, "faulty", faulty) as (server, port):
        third = drive(lmcache, server, port)
    assert third.hits == [1] * 3
    assert third.checksums == stored.checksums


def test_a_server_goes_on_when_its_node_dies(lmcache_python: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    cluster.mkdir(mode=0o700)
    with NodeChild(cluster, "--dram", "64MiB") as node:
        lmcache = LMCache(lmcache_python, node, "dies", tmp_path)
        with running(lmcache, "server", lmcache.l2()) as (server, port):
            assert drive(lmcache, server, port, 0, 1).matches == 1
            node.kill()
            alone = drive(lmcache, server, port, 1, 3)
            wait_until(lambda: not counts(server)["is_healthy"], PATIENCE_S, "the loss to be told")
            failed = [name for name in counts(server) if name.startswith("failed|")]
    assert alone.hits == [0, 0]
    assert alone.matches == 2
    assert failed

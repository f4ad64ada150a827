"""Two LMCache servers in turn over one node: what the first one stored, the second one, empty, must hit.

Simulated engines of LMCache's own benchmark store chunks, read them back and compare their checksums.
"""

from __future__ import annotations

import json
import urllib.request
from contextlib import contextmanager
from collections.abc import Iterator
from typing import Any

import pytest
from tools.servers import Server

from engines.lmcache.conftest import LMCache

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

START_S = 300.0
CHUNK = 64
TOKENS = 256
SESSIONS = 4


@contextmanager
def running(lmcache: LMCache, name: str, adapter: dict[str, Any]) -> Iterator[tuple[Server, int]]:
    server, port = lmcache.server(name, adapter)
    try:
        yield server.start().wait_ready(START_S), port
    finally:
        server.stop()


def drive(lmcache: LMCache, server: Server, port: int) -> str:
    """Let LMCache's benchmark store and read back; its report."""
    return lmcache.command(
        "bench", "server", "--rpc-url", f"tcp://127.0.0.1:{port}", "--url", server.url, "--mode", "cpu",
        "--transfer-mode", "engine_driven", "--num-tokens", TOKENS, "--interval", 0.01,
        "--kvcache-shape-spec", "(2,64,16,2,32):float16:4", "--start", 0, "--end", SESSIONS,
    )  # fmt: skip


def l2_status(server: Server) -> dict[str, Any]:
    """What our adapter reports of itself to the server's own status page."""
    with urllib.request.urlopen(server.url + "/status", timeout=30) as answer:
        status = json.load(answer)

    def find(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if value.get("type") == "kvferry":
                yield value
            for each in value.values():
                yield from find(each)
        elif isinstance(value, list):
            for each in value:
                yield from find(each)

    [found] = find(status)
    return found


def test_a_second_server_hits_what_the_first_one_stored(lmcache: LMCache) -> None:
    with running(lmcache, "first", lmcache.l2()) as (server, port):
        print(drive(lmcache, server, port))
        print(l2_status(server))
    with running(lmcache, "second", lmcache.l2()) as (server, port):
        print(drive(lmcache, server, port))
        print(l2_status(server))
    print(server.log.read_text()[-3000:])
    assert 0

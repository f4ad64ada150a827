"""vLLM with LMCache's own connector, LMCache's server, and KVFerry below: the same tokens, and a second vLLM
with a second server loads what the first one computed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engines.lmcache.conftest import LMCache
from engines.lmcache.test_server import counts, running
from kvferry.testing.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).parent / "vllm_program.py"
CACHED = 256  # of 300 tokens: what is whole chunks of LMCache's, of 64 tokens each
PATIENCE_S = 60.0


def ask(lmcache: LMCache, *port: int) -> dict[str, Any]:
    output = lmcache.run(PROGRAM, os.environ["KVFERRY_MODEL_TINY"], *port)
    [line] = [line for line in output.splitlines() if line.startswith("ANSWER ")]
    found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
    return found


def test_a_second_vllm_loads_what_the_first_one_computed(lmcache: LMCache) -> None:
    alone = ask(lmcache)
    assert alone["cached"] == 0
    with running(lmcache, "first", lmcache.l2()) as (server, port):
        assert ask(lmcache, port) == alone
        wait_until(lambda: int(counts(server).get("saved", 0)) >= CACHED // 64, PATIENCE_S, "chunks saved")
    with running(lmcache, "second", lmcache.l2()) as (server, port):
        again = ask(lmcache, port)
        assert int(counts(server)["loaded"]) >= CACHED // 64
    assert again == {"tokens": alone["tokens"], "cached": CACHED}

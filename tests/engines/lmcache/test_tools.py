"""LMCache's own check tool and benchmark, unchanged, on KVFerry. For LMCache an error is a miss, so what is
asserted are hits and contents.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from engines.lmcache.conftest import LMCache

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

KEYS = 5


def validations(output: str) -> list[str]:
    """What the check tool says of each phase: `5/5`."""
    return re.findall(r"(?:Validation[^:]*:|correctly|Validation \(\w+\):)\s*(\d+/\d+)", output)


@pytest.mark.parametrize(
    ("mode", "heads"),
    [("test_remote", True), ("test_remote", False), ("test_storage_manager", True)],
    ids=["remote backend", "remote backend without chunk metadata", "storage manager"],
)
def test_the_check_tool_gets_back_what_it_put(lmcache: LMCache, mode: str, heads: bool) -> None:
    config = lmcache.config()
    content = json.loads(config.read_text())
    content["extra_config"]["save_chunk_meta"] = heads
    if mode == "test_remote":  # this mode knows the older way to name a storage only
        content["remote_url"] = f"kvferry://{lmcache.node.advert.endpoint}"
    config.write_text(json.dumps(content))
    output = lmcache.run("-m", "lmcache.v1.basic_check", "--mode", mode, config=config)
    assert validations(output) == [f"{KEYS}/{KEYS}"] * 5, output[-3000:]


def test_the_check_tool_loads_what_it_stored_in_l2(lmcache: LMCache) -> None:
    adapter = json.dumps(lmcache.l2())
    output = lmcache.run("-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--l2-adapter", adapter)
    assert validations(output) == [f"{KEYS}/{KEYS}"] * 4, output[-3000:]


def bench(lmcache: LMCache, adapter: dict[str, Any]) -> dict[str, Any]:
    output = lmcache.command(
        "bench", "l2", "--l2-adapter", json.dumps(adapter), "--no-skip-verify", "--format", "json",
        "--num-keys", 16, "--rounds", 2, "--lookup-max-hit-rate", 1.0,
    )  # fmt: skip
    report = re.search(r"^\{.*^\}", output, re.MULTILINE | re.DOTALL)
    assert report, output
    assert "verif" in output.lower(), output
    found: dict[str, Any] = json.loads(report[0])
    return {each["operation"]: each for each in found["metrics"].values() if "operation" in each}


def test_the_benchmark_verifies_every_byte(lmcache: LMCache) -> None:
    result = bench(lmcache, lmcache.l2())
    assert {name: (each["total_success"], each["rounds_timed_out"]) for name, each in result.items()} == {
        "Store": (32, 0),
        "Lookup": (32, 0),
        "Load": (32, 0),
    }
    assert result["Lookup"]["actual_hit_rate"] == 1.0

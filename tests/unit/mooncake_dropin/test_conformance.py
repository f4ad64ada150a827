"""The drop-in module answers what Mooncake answers, but for what docs/mooncake.md lists.

The answers of mooncake-transfer-engine 0.3.13.post1 are kept in tests/data; tests/engines/mooncake_dropin
asks the real one again, where it is installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import _mooncake_engine_cases as engine_cases
import _mooncake_store_cases as store_cases

DATA = Path(__file__).resolve().parents[2] / "data"

# case -> our answer; everything else must be equal
ENGINE = {
    "write from unregistered memory": -1,  # Mooncake's tcp takes it, its rdma does not
    "negative address": -1,  # a TypeError there
    "initialize with a missing metadata server": 0,  # none is needed
}
STORE = {
    "remove what was just read": 0,  # Mooncake refuses it as long as the reader has a lease
}


def answers_of_mooncake(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"mooncake_{name}_answers.json").read_text())
    return found


def through_json(found: dict[str, Any]) -> dict[str, Any]:
    """Return answers as those of the real one came."""
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again


def test_the_transfer_engine_answers_as_mooncakes() -> None:
    assert through_json(engine_cases.run()) == answers_of_mooncake("engine") | ENGINE


def test_the_store_answers_as_mooncakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("KVFERRY_CLUSTER_DIRECTORY", str(tmp_path))
    assert through_json(store_cases.run("embedded")) == answers_of_mooncake("store") | STORE

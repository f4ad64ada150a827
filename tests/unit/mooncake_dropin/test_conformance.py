"""The drop-in module answers what Mooncake answers, but for what docs/mooncake.md lists.

The answers of mooncake-transfer-engine 0.3.13.post1 are kept in tests/data; tests/engines/mooncake_dropin
asks the real one again, where it is installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import _mooncake_engine_cases as engine_cases

DATA = Path(__file__).resolve().parents[2] / "data"

# case -> our answer; everything else must be equal
STRICTER = {
    "write from unregistered memory": -1,  # Mooncake's tcp takes it, its rdma does not
    "negative address": -1,  # a TypeError there
    "initialize with a missing metadata server": 0,  # none is needed
}


def answers_of_mooncake(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"mooncake_{name}_answers.json").read_text())
    return found


def test_the_transfer_engine_answers_as_mooncakes() -> None:
    # through JSON, as the answers of the real one came
    assert json.loads(json.dumps(engine_cases.run())) == answers_of_mooncake("engine") | STRICTER

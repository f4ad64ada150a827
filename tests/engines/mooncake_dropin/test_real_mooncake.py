"""The kept answers of Mooncake (tests/data) are still those of the real package.

Needs KVFERRY_MOONCAKE_PYTHON, an interpreter with a real Mooncake: `python3 -m tools.envs bench-peers`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
MOONCAKE = os.environ.get("KVFERRY_MOONCAKE_PYTHON", "")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not MOONCAKE, reason="KVFERRY_MOONCAKE_PYTHON names no interpreter with Mooncake"),
]


@pytest.mark.parametrize("name", ["engine"])
def test_the_real_mooncake_answers_as_kept(name: str) -> None:
    done = subprocess.run(
        [MOONCAKE, TESTS / f"_mooncake_{name}_cases.py"],
        env={"PATH": "/usr/bin:/bin", "MC_FORCE_TCP": "true"},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads((TESTS / f"data/mooncake_{name}_answers.json").read_text())
    assert json.loads(done.stdout) == kept

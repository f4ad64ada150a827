"""vLLM's own MooncakeConnector, unchanged, hands a prompt over by KVFerry: with the tokens of one engine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("pd_program.py")
DROP_IN = Path(__file__).resolve().parents[3] / "connectors/mooncake"
TIMEOUT_S = 450.0

pytestmark = [pytest.mark.engine, pytest.mark.timeout(500)]


@pytest.fixture
def results(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """What each engine said."""
    python, model = os.environ.get("KVFERRY_VLLM_PYTHON"), os.environ.get("KVFERRY_MODEL_TINY")
    if not python or not model:
        pytest.skip("KVFERRY_VLLM_PYTHON and KVFERRY_MODEL_TINY are set by ./test")
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(DROP_IN))))
    with (tmp_path / "log").open("w") as log:
        subprocess.run(
            [python, PROGRAM, model, tmp_path], env={**os.environ, "PYTHONPATH": path},
            stdout=log, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    said = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert len(said) == 3, (tmp_path / "log").read_text(errors="replace")[-4000:]
    return said


def test_the_decode_engine_gets_the_prompt_and_says_the_same(results: dict[str, dict[str, Any]]) -> None:
    errors = [each["error"] for each in results.values() if "error" in each]
    assert not errors, "\n".join(errors)
    plain, consumer = results["plain"], results["kv_consumer"]
    assert plain["cached"] == 0
    assert consumer["cached"] > 100, "the prompt was not handed over"
    assert consumer["tokens"] == plain["tokens"]
    assert results["kv_producer"]["tokens"] == plain["tokens"][:1]

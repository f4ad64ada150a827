"""SGLang's own Mooncake classes for prefill/decode disaggregation move KV by KVFerry: `pd_cases.py`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from engines.sglang.environment import cpu_environment, sglang_python

PROGRAM = Path(__file__).with_name("pd_cases.py")
DROP_IN = Path(__file__).resolve().parents[3] / "connectors/mooncake"
CASES = re.findall(r"^@case\ndef (\w+)", PROGRAM.read_text(), re.MULTILINE)
TIMEOUT_S = 400.0

pytestmark = [pytest.mark.engine, pytest.mark.timeout(450)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The error of each case that was run, empty if there was none; what else it said, with the last."""
    environment = cpu_environment(MC_FORCE_TCP="1")
    environment["PYTHONPATH"] += f"{os.pathsep}{DROP_IN}"
    log = tmp_path_factory.mktemp("sglang") / "log"
    with log.open("w") as errors:
        done = subprocess.run(
            [sglang_python(), PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=errors,
            text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    found = {each["case"]: each["error"] for each in map(json.loads, done.stdout.splitlines())}
    return {**found, "log": log.read_text(errors="replace")[-4000:]}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, results: dict[str, str]) -> None:
    assert name in results, f"not run; the program said: {results['log']}"
    assert not results[name], f"{results[name]}\n{results['log']}"


def test_the_cases_are_found() -> None:
    assert len(CASES) == 4

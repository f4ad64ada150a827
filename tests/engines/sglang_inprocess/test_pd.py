"""Prefill/decode disaggregation on SGLang's own classes, all in one process of SGLang's environment.

The cases are in `pd_cases.py`, which runs there once; each is a test here.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from engines.sglang.environment import cpu_environment, sglang_python

PROGRAM = Path(__file__).with_name("pd_cases.py")
CASES = re.findall(r"^@case\ndef (\w+)", PROGRAM.read_text(), re.MULTILINE)
TIMEOUT_S = 400.0

pytestmark = [pytest.mark.engine, pytest.mark.timeout(500)]  # the first runs all


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The error of each case that was run, empty if there was none; what else it said, with the last."""
    log = tmp_path_factory.mktemp("sglang") / "log"
    with log.open("w") as errors:
        done = subprocess.run(
            [sglang_python(), PROGRAM],
            env=cpu_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    found = {each["case"]: each["error"] for each in map(json.loads, done.stdout.splitlines())}
    found["log"] = log.read_text(errors="replace")[-4000:]
    return found


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, results: dict[str, str]) -> None:
    assert name in results, f"not run; the program said: {results['log']}"
    assert not results[name], f"{results[name]}\n{results['log']}"


def test_the_cases_are_found() -> None:
    assert len(CASES) >= 20

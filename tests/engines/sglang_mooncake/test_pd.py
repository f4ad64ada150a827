"""SGLang's own Mooncake classes move KV and encoders' outputs by KVFerry: `pd_cases.py`, `epd_cases.py`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from engines.sglang.environment import cpu_environment, sglang_python

HERE = Path(__file__).parent
DROP_IN = Path(__file__).resolve().parents[3] / "connectors/mooncake"
CASES = [
    (program, name)
    for program in ("pd_cases.py", "epd_cases.py")
    for name in re.findall(r"^@case\ndef (\w+)", (HERE / program).read_text(), re.MULTILINE)
]
TIMEOUT_S = 400.0

pytestmark = [pytest.mark.engine, pytest.mark.timeout(450)]


class Programs:
    """Runs each program once, when its first case is asked for."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._found: dict[str, dict[str, str]] = {}

    def results(self, program: str) -> dict[str, str]:
        """The error of each case that was run, empty if there was none; what else it said, as `log`."""
        if program not in self._found:
            self._found[program] = self._run(program)
        return self._found[program]

    def _run(self, program: str) -> dict[str, str]:
        environment = cpu_environment(MC_FORCE_TCP="1")
        environment["PYTHONPATH"] += f"{os.pathsep}{DROP_IN}"
        log = self._logs / f"{program}.log"
        with log.open("w") as errors:
            done = subprocess.run(
                [sglang_python(), HERE / program], env=environment, stdout=subprocess.PIPE, stderr=errors,
                text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        found = {each["case"]: each["error"] for each in map(json.loads, done.stdout.splitlines())}
        return {**found, "log": log.read_text(errors="replace")[-4000:]}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("sglang"))


@pytest.mark.parametrize(("program", "name"), CASES)
def test_case(program: str, name: str, programs: Programs) -> None:
    results = programs.results(program)
    assert name in results, f"not run; the program said: {results['log']}"
    assert not results[name], f"{results[name]}\n{results['log']}"


def test_the_cases_are_found() -> None:
    assert len(CASES) == 10

"""The migration backend on LMDeploy's real disaggregation classes: cases.py, in LMDeploy's interpreter."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parent / "cases.py"
DROP_IN = Path(__file__).resolve().parents[3] / "connectors/mooncake"
PROGRAM_S = 400.0


def names() -> list[str]:
    """The cases of the program, in order; it cannot be imported without LMDeploy."""
    body = ast.parse(PROGRAM.read_text()).body
    found = [node.name for node in body if isinstance(node, ast.AsyncFunctionDef) and node.name != "run"]
    assert found
    return found


def run(python: Path, *words: str, program: Path = PROGRAM, **more: str) -> dict[str, str]:
    """What each case found wrong, by name; nothing for one that did not end."""
    done = subprocess.run(
        [python, program, *words], capture_output=True, text=True, timeout=PROGRAM_S, check=False,
        env={**os.environ, **more},
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return {line["case"]: line["problem"] for line in lines}


def with_drop_in() -> str:
    """The path on which our module `mooncake` is found."""
    return os.pathsep.join([str(DROP_IN), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def results(lmdeploy_python: Path) -> dict[str, str]:
    """What each case found wrong with our backend."""
    return run(lmdeploy_python)


@pytest.mark.parametrize("case", names())
def test_case(results: dict[str, str], case: str) -> None:
    assert results.get(case, "it did not end") == ""


def test_lmdeploys_mooncake_backend_moves_blocks_by_our_module(lmdeploy_python: Path) -> None:
    problems = run(lmdeploy_python, "mooncake", PYTHONPATH=with_drop_in())
    assert [name for name, problem in problems.items() if problem] == [], problems
    assert len(problems) == 4


def test_the_command_line_knows_the_backend(lmdeploy_python: Path) -> None:
    command = [lmdeploy_python, "-m", "kvferry_lmdeploy", "serve", "api_server", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "{DLSlime,Mooncake,KVFerry}" in done.stdout

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

import kvferry.cli.doctor
from kvferry.cli import main
from kvferry.cli.host import Check, Level, collect

GOOD = Check("transport tcp", Level.OK, "fine")
WARNING = Check("memory", Level.WARNING, "small", "make it bigger")
BROKEN = Check("native module", Level.ERROR, "cannot be loaded", "pip install it")


def pretend(monkeypatch: pytest.MonkeyPatch, checks: Sequence[Check]) -> None:
    """Let `kvferry doctor` find these checks."""
    monkeypatch.setattr(kvferry.cli.doctor, "collect", lambda: list(checks))


@pytest.mark.parametrize(
    ("checks", "code"), [((GOOD,), 0), ((GOOD, WARNING), 0), ((GOOD, WARNING, BROKEN), 1)]
)
def test_the_exit_code_tells_whether_the_main_job_can_run(
    checks: Sequence[Check], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, checks)
    assert main(["doctor"]) == code
    out = capsys.readouterr().out
    for check in checks:
        assert check.summary in out
        assert check.fix in out
    assert main(["doctor", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (code == 0)
    assert document["checks"] == [check.as_dict() for check in checks]


def test_every_check_of_this_host_has_a_summary_and_problems_have_a_fix() -> None:
    checks = collect()
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    for wanted in (
        "native module",
        "transport tcp",
        "transport shm",
        "NUMA",
        "memlock",
        "accelerators",
        "vLLM",
    ):
        assert wanted in names
    for check in checks:
        assert check.summary
        assert check.fix or check.level in (Level.OK, Level.NOTE)
    json.dumps([check.as_dict() for check in checks])

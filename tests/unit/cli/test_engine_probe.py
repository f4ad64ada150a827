from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvferry.cli.host import engine_probe
from kvferry.cli.host.model import Level


@pytest.mark.parametrize(
    ("results", "level", "words"),
    [
        ({"shm": "ok", "tcp": "ok"}, Level.OK, "by shm and tcp"),
        ({"shm": "not permitted", "tcp": "ok"}, Level.WARNING, "not by shm: not permitted"),
        ({"shm": "ok", "tcp": "no route"}, Level.ERROR, "tcp: no route"),
        ({"engine": "an engine could not be started"}, Level.ERROR, "could not be started"),
    ],
)
def test_tcp_is_needed_and_shm_is_wanted(results: dict[str, str], level: Level, words: str) -> None:
    check = engine_probe.check_moves(results)
    assert check.level is level
    assert words in check.summary
    assert bool(check.fix) == (level is not Level.OK)


def test_two_processes_move_bytes_by_each_transport() -> None:
    pytest.importorskip("kvferry._native")
    results = engine_probe.probe_moves()
    assert results.keys() == {"shm", "tcp"}
    assert results["tcp"] == "ok"
    assert results["shm"] == "ok" or "not permitted" in results["shm"]


OWNER_STAYS = "import sys\nif sys.argv[1] == 'owner':\n    print('a b', flush=True)\n    sys.stdin.read()\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit(1)", "could not be started"),
        (f"{OWNER_STAYS}else:\n    sys.stdin.readline()", "ended early"),
        ("import time\ntime.sleep(60)", "could not run"),
    ],
)
def test_a_probe_that_cannot_run_says_why(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "peer.py"
    file.write_text(f"{script}\n")
    monkeypatch.setattr(engine_probe, "_COMMAND", (sys.executable, str(file)))
    monkeypatch.setattr(engine_probe, "_TIMEOUT_S", 0.5 if "sleep" in script else 30.0)
    assert reason in engine_probe.probe_moves()["engine"]

"""A command that advances is not given up, however long it takes; one that stands still is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools.progress import ToolError, Watch, run_logged


def test_what_writes_is_waited_for_and_what_is_silent_is_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run: [7/9] x\n")
    watch = Watch(log, 10.0, now=100.0)
    assert watch.step() == ""
    for now in range(105, 145, 8):
        with log.open("a") as file:
            file.write(f"[{now}/200] Building CXX object\n")
        assert watch.complaint(now) == ""
    assert watch.step() == ", step 137 of 200"
    assert watch.complaint(147.0) == ""
    assert watch.complaint(147.1) == "no output for 10 s"


def test_what_never_ends_is_given_up_though_it_writes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    watch = Watch(log, 10.0, now=0.0)
    for now in range(0, 81, 5):
        with log.open("a") as file:
            file.write("still running...\n")
        assert watch.complaint(now) == ""
    with log.open("a") as file:
        file.write("still running...\n")
    assert watch.complaint(81.0) == "no end after 80 s"


def test_a_silent_command_is_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(ToolError, match="waiting: no output for 1 s\n"):
        run_logged(command, tmp_path / "log", "waiting", timeout_s=1.0)

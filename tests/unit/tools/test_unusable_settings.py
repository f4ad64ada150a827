"""What ./demo says to settings of its own that cannot work: one sentence, no traceback, nothing installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("folder", ["/proc/kvferry", "/dev/null"])
def test_a_cache_folder_that_cannot_be_used(folder: str) -> None:
    done = _demo(KVFERRY_CACHE=folder)
    assert done.returncode == 1
    assert f"the cache folder {folder} cannot be used" in done.stderr
    assert "set KVFERRY_CACHE" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_named_python_that_is_none() -> None:
    done = _demo(KVFERRY_PYTHON="/nonexistent")
    assert done.returncode == 1
    assert "KVFERRY_PYTHON=/nonexistent is no Python 3.11" in done.stderr
    assert "installing" not in done.stderr


def _demo(**settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["./demo", "--stop"],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

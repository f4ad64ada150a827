from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_stub_is_what_the_module_generates():
    command = [sys.executable, ROOT / "tools" / "stubs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_stubtest_finds_no_difference_between_stub_and_module():
    command = [
        sys.executable, "-m", "mypy.stubtest", "kvferry._native",
        "--mypy-config-file", ROOT / "pyproject.toml",
        "--allowlist", ROOT / "tests" / "data" / "stubtest_allowlist.txt",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr

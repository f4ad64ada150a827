"""Case 8.4: versions that differ, parts that need an import order. See tests/packaging, too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry import _native

ROOT = Path(__file__).parents[2]
PARTS = sorted(f"kvferry.{path.parent.name}" for path in (ROOT / "core/kvferry").glob("*/__init__.py"))


def test_the_version_has_one_source():
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated is not None
    assert _native.__version__ == stated[1]


@pytest.mark.parametrize("part", PARTS)
def test_each_part_can_be_imported_first(part):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {part}"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def lmdeploy_python() -> Path:
    """The interpreter with LMDeploy and KVFerry; skips the test when none is named."""
    named = os.environ.get("KVFERRY_LMDEPLOY_PYTHON")
    if not named:
        pytest.skip("KVFERRY_LMDEPLOY_PYTHON names no interpreter with LMDeploy; ./test sets it")
    return Path(named)

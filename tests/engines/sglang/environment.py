"""SGLang on a CPU, for tests: which interpreter, and the environment in which it runs there.

`./test` names the interpreter of an environment that holds SGLang and KVFerry in KVFERRY_SGLANG_PYTHON;
without it, these tests are skipped. The stand-ins for what SGLang needs of a GPU are in `shims`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BY_HAND = pytest.mark.skipif(
    not os.environ.get("KVFERRY_BY_HAND"), reason="more servers than ./test has time for: KVFERRY_BY_HAND=1"
)
SHIMS = Path(__file__).resolve().parent / "shims"


def sglang_python() -> Path:
    """The interpreter with SGLang and KVFerry; skips the test when none is named."""
    named = os.environ.get("KVFERRY_SGLANG_PYTHON")
    if not named:
        pytest.skip("KVFERRY_SGLANG_PYTHON names no interpreter with SGLang; ./test sets it")
    return Path(named)


def cpu_environment(**more: str) -> dict[str, str]:
    """The environment for a program of SGLang on a CPU, on loopback and without the network."""
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{SHIMS}{os.pathsep + path if path else ''}",
        "PYTHONWARNINGS": "ignore",
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }

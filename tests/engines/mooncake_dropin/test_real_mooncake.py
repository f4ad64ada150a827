"""The kept answers of Mooncake (tests/data) are still those of the real package.

Needs KVFERRY_MOONCAKE_PYTHON, an interpreter with a real Mooncake: `python3 -m tools.envs bench-peers`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry.testing.waiting import wait_until

TESTS = Path(__file__).resolve().parents[2]
MOONCAKE = os.environ.get("KVFERRY_MOONCAKE_PYTHON", "")

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.engine,
    pytest.mark.skipif(not MOONCAKE, reason="KVFERRY_MOONCAKE_PYTHON names no interpreter with Mooncake"),
]


def free_port() -> int:
    """Return a port that nobody listens on; Mooncake's master cannot choose one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(name: str, *arguments: str) -> object:
    """Return what the real Mooncake answers."""
    done = subprocess.run(
        [MOONCAKE, TESTS / f"_mooncake_{name}_cases.py", *arguments],
        env={"PATH": "/usr/bin:/bin", "MC_FORCE_TCP": "true"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def kept(name: str) -> object:
    """Return what is kept of them."""
    return json.loads((TESTS / f"data/mooncake_{name}_answers.json").read_text())


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a Mooncake master."""
    port, log = free_port(), tmp_path / "master.log"
    command = [
        Path(MOONCAKE).parent / "mooncake_master",
        f"--rpc_port={port}",
        f"--metrics_port={free_port()}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Master service started" in log.read_text() or process.poll() is not None, 60.0)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(60)


def test_the_real_transfer_engine_answers_as_kept() -> None:
    assert answers("engine") == kept("engine")


def test_the_real_store_answers_as_kept(master: str) -> None:
    assert answers("store", master) == kept("store")

"""Real engines for tests: byte patterns, pieces, and engines in processes of their own."""

from __future__ import annotations

import contextlib
import json
import mmap
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvferry.transfer import Engine, Peer, Transfer

Bytes = NDArray[np.uint8]
_MAP_NORESERVE = 0x4000  # the mmap module has no name for it


def pieces(*rows: Sequence[int]) -> NDArray[np.uint64]:
    """Rows of (local region, remote region, local offset, remote offset, length)."""
    return np.array(rows, dtype=np.uint64).reshape(-1, 5)


def pattern(length: int, seed: int = 0) -> Bytes:
    """Bytes without a short period, different for each seed."""
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


def sparse(length: int) -> Bytes:
    """Zeroed memory of which only the pages that are written exist."""
    return np.frombuffer(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE), dtype=np.uint8)


def move(engine: Engine, peer: Peer, rows: Any, op: Any = "read", **submit: Any) -> Transfer:
    """Prepare, submit, wait; the settled transfer, failed or not."""
    transfer = engine.submit(engine.prepare(peer, rows, op), **submit)
    if not transfer.wait():
        raise AssertionError("a transfer must settle at its deadline")
    return transfer


class Child:
    """An engine in its own process (`kvferry.testing.engine_process`): ends when it is closed.

    `regions`: what it registers, each a dictionary with name and length, and if wanted access ("rw"), seed
    of its pattern, allocate (its own memory) or sparse. Not thread-safe.
    """

    def __init__(self, regions: Sequence[dict[str, Any]] = (), **engine_options: Any) -> None:
        settings = json.dumps({"options": engine_options, "regions": list(regions)})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvferry.testing.engine_process", settings],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            ready = self._read()
        except AssertionError:
            self.close()
            raise
        self.node_id: str = ready["node_id"]
        self.endpoint: str = ready["endpoint"]

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"child engine died with status {self.process.wait(60)}")
        return json.loads(line)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send one command and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(60)

    def close(self) -> None:
        """End it in good order, or by force."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

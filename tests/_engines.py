"""Transfer engines for tests: pairs in one process, and engines in processes of their own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvferry.transfer import Engine, Peer, Transfer, TransferOptions

CHILD = Path(__file__).with_name("_engine_child.py")


def options(*transports: str, **others: Any) -> TransferOptions:
    """Options with `transports` and no other way to a peer."""
    return TransferOptions(transports=transports or ("shm", "tcp"), **{"allow_fallback": False, **others})


class Pair(NamedTuple):
    """Two engines of this process; `peer` is `server` as `client` sees it."""

    client: Engine
    server: Engine
    peer: Peer


@contextlib.contextmanager
def engine_pair(*transports: str, server: dict[str, Any] | None = None, **others: Any) -> Iterator[Pair]:
    """A client connected to a server; register the server's memory, then `peer.refresh()`."""
    with (
        Engine(options(*transports, **(server or {}))) as far,
        Engine(options(*transports, **others)) as near,
    ):
        yield Pair(near, far, near.connect(far.endpoint, expected=far.node_id))


def pieces(*rows: Sequence[int]) -> np.ndarray:
    """Rows of (local region, remote region, local offset, remote offset, length)."""
    return np.array(rows, dtype=np.uint64).reshape(-1, 5)


def pattern(length: int, seed: int = 0) -> np.ndarray:
    """Bytes without a short period, different for each seed."""
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


def move(engine: Engine, peer: Peer, rows: np.ndarray, op: Any = "read", **submit: Any) -> Transfer:
    """Prepare, submit, wait; the settled transfer, failed or not."""
    transfer = engine.submit(engine.prepare(peer, rows, op), **submit)
    assert transfer.wait(), "a transfer must settle at its deadline"
    return transfer


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0, what: str = "condition") -> None:
    """Poll `condition`; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} not met after {timeout_s} s"
        time.sleep(0.01)


class Child:
    """An engine in its own process. Answers each line on its input; ends when its input is closed."""

    def __init__(self, regions: Sequence[dict[str, Any]] = (), **engine_options: Any) -> None:
        settings = json.dumps({"options": engine_options, "regions": list(regions)})
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), settings],
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
        assert line, f"child engine died with status {self.process.wait(10)}"
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
        self.process.wait(10)

    def close(self) -> None:
        """End it in good order, or by force."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

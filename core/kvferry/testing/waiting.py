"""Waiting for what must come."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

from kvferry.meta import Watch

PATIENCE_S = 60.0  # how long a test waits for what must come, however busy the machine is


def wait_until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S, what: str = "condition") -> None:
    """Poll `condition`; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} not met after {timeout_s} s")
        time.sleep(0.01)


def stop_process(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Stop a child process where it is (SIGSTOP); when this returns, it stands still."""
    process.send_signal(signal.SIGSTOP)
    state = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    wait_until(lambda: os.waitid(os.P_PID, process.pid, state) is not None, PATIENCE_S, "the process's stop")


def read_until(
    watch: Watch, done: Callable[[dict[str, bytes]], bool], patience_s: float = PATIENCE_S
) -> dict[str, bytes]:
    """Follow a watch until the state that it told so far is as wanted; returns that state."""
    state: dict[str, bytes] = {}
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        batch = watch.next(0.2)
        for event in batch.events if batch else ():
            if event.entry is None:
                state.pop(event.key, None)
            else:
                state[event.key] = event.entry.value
        if done(state):
            return state
    raise AssertionError(f"the watch told {state} in {patience_s} s, and nothing else")

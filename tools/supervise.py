"""Runs one server so that nothing of it outlives us: python supervise.py COMMAND [ARG...]

Everything the command starts, at any depth, ends when the command ends, when this process is told to stop
(SIGTERM, SIGINT), or when whoever started it goes away, kill -9 included: it holds the other end of our
standard input. The line "detach" there lets the server live on alone until this process gets a SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 20.0
_KILL_S = 10.0


class _StopError(Exception):
    """Raised by the signal handler."""


def _on_signal(_signal: int, _frame: FrameType | None) -> None:
    raise _StopError


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents before children (a zombie counts until it is reaped)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file,
        ):
            parent = int(file.read().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _reap() -> None:
    """Collect orphans that became ours; the server itself is left to its Popen object."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_GRACE_S)
    deadline = time.monotonic() + _KILL_S
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.poll()
        _reap()
        time.sleep(0.05)


def _watch(server: subprocess.Popen[bytes]) -> None:
    """Return when the server has ended or the starter is gone."""
    watched = [sys.stdin.fileno()]
    while server.poll() is None:
        readable, _, _ = select.select(watched, [], [], 0.1)
        if readable:
            data = os.read(watched[0], 4096)
            if not data:
                return
            if b"detach" in data:
                watched = []


def main() -> int:
    # Set before the server exists: it must not be possible to miss a request to stop.
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server: subprocess.Popen[bytes] | None = None
    try:
        # preexec_fn is safe here: this process has one thread.
        server = subprocess.Popen(
            sys.argv[1:],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )
        _watch(server)
    except _StopError:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if server is not None:
            _end(server)
    code = server.returncode if server is not None else 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

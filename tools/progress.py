"""Plain progress output with elapsed seconds, and commands run with their output kept in a log file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tools.supervise import descendants

_START = time.monotonic()
_LONGEST = 8  # times the time without output that a command is allowed, for the whole of it
_SUPERVISOR = Path(__file__).resolve().parent / "supervise.py"


class ToolError(Exception):
    """Something the user has to know about; the text says what failed and what to do."""


def say(text: str) -> None:
    """Print one progress line with the seconds since the start."""
    print(f"[{time.monotonic() - _START:6.1f} s] {text}", flush=True)


def start_supervised(
    command: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    output: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command below a supervisor, so that nothing of it outlives us, kill -9 of us included.

    Output goes to `output`, by default to our own. The command sees no standard input.
    """
    return subprocess.Popen(
        [sys.executable, str(_SUPERVISOR), *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
        cwd=cwd,
        start_new_session=True,
    )


def end_supervised(process: subprocess.Popen[bytes], timeout_s: float = 40.0) -> None:
    """Stop a supervised command with all its processes, if it still runs, and wait for its end."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            for pid in (*descendants(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
    if process.stdin is not None:
        process.stdin.close()


def tail(path: Path, lines: int = 30) -> str:
    """The last `lines` lines of a text file; a sentence when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"({path} cannot be read: {error})"
    return "\n".join(text.splitlines()[-lines:])


class Watch:
    """Whether a command that writes to a log still advances: a build may take hours on a busy machine."""

    def __init__(self, log: Path, timeout_s: float, now: float) -> None:
        """Look at what is written to `log` from `now` on. `timeout_s`: the longest time without output."""
        self._log = log
        self._timeout_s = timeout_s
        self._started = self._grown = now
        self._begin = self._size = log.stat().st_size

    def complaint(self, now: float) -> str:
        """Why the command has to be given up, if it has to."""
        size = self._log.stat().st_size
        if size != self._size:
            self._size, self._grown = size, now
        if now - self._grown > self._timeout_s:
            return f"no output for {self._timeout_s:.0f} s"
        longest = _LONGEST * self._timeout_s
        return f"no end after {longest:.0f} s" if now - self._started > longest else ""

    def step(self) -> str:
        """Where ninja, the build tool, says that it is: ", step 12 of 80"; empty if it has said nothing."""
        with self._log.open("rb") as file:
            file.seek(max(self._begin, self._size - 16 * 1024))
            steps = re.findall(rb"\[(\d+)/(\d+)\] ", file.read())
        return ", step {} of {}".format(*(each.decode() for each in steps[-1])) if steps else ""


def run_logged(
    command: Sequence[object],
    log: Path,
    label: str,
    *,
    timeout_s: float = 1800.0,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a command with its output appended to `log`, showing the label and, now and then, that it is alive.

    Raises ToolError with the end of the log when it fails, writes nothing for `timeout_s`, or takes
    8 times that.
    """
    say(label)
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    next_note = started + 20.0
    with log.open("ab") as out:
        watch = Watch(log, timeout_s, started)
        process = start_supervised(command, env=env, cwd=cwd, output=out)
        try:
            while process.poll() is None:
                now = time.monotonic()
                if complaint := watch.complaint(now):
                    raise ToolError(f"{label}: {complaint}\n{tail(log)}\nlog: {log}")
                if now >= next_note:
                    say(f"  ... {label} ({now - started:.0f} s{watch.step()})")
                    next_note = now + 20.0
                time.sleep(0.1)
        finally:
            end_supervised(process)
    if process.returncode != 0:
        raise ToolError(f"{label}: failed with exit status {process.returncode}\n{tail(log)}\nlog: {log}")


def fail(error: BaseException) -> int:
    """Print an error for the user and return the exit status 1."""
    print(f"\nerror: {error}", file=sys.stderr, flush=True)
    return 1

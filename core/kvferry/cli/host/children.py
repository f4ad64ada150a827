"""Child processes that take part in a probe: line by line, with a deadline, ended in any case."""

from __future__ import annotations

import errno
import os
import select
import subprocess
from collections.abc import Sequence
from types import TracebackType


class Child:
    """A child process; a context manager that ends it. Not thread-safe.

    It must not print a second line before it has been told something.
    """

    def __init__(self, command: Sequence[str], *arguments: str) -> None:
        """Start it. Raises OSError."""
        self._process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def line(self, timeout_s: float) -> str:
        """Return the next line it prints, empty if it ended. Raises OSError when the time is up."""
        assert self._process.stdout is not None  # noqa: S101  (it was opened as a pipe)
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        return self._process.stdout.readline().strip()

    def tell(self, text: str) -> None:
        """Send it one line. Raises OSError if it is gone."""
        assert self._process.stdin is not None  # noqa: S101  (it was opened as a pipe)
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.__exit__(kind, error, trace)

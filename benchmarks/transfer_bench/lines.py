"""A helper process that answers JSON lines, with a deadline for every answer."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 120.0
END_S = 20.0


class HelperError(Exception):
    """The helper ended or did not answer."""


class Helper:
    """One process; `ask` sends a line and waits for the answer. Not thread-safe."""

    def __init__(self, argv: list[str], *, env: dict[str, str] | None = None, quiet: bool = False) -> None:
        self._argv = argv
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if quiet else None,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
            )
        except OSError as error:
            raise HelperError(str(error)) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> dict[str, Any]:
        """The next line; `HelperError` if there is none within the deadline."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
                raise HelperError(f"no answer within {ANSWER_S:.0f} s: {' '.join(self._argv)}")
            got = os.read(self._process.stdout.fileno(), 1 << 16)
            if not got:
                status = self._process.wait(END_S)
                raise HelperError(f"exit status {status}: {' '.join(self._argv)}")
            self._buffer += got
        line, _newline, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HelperError(str(answer["error"]))
        return answer

    def send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise HelperError(f"it ended: {' '.join(self._argv)}") from None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.send(request)
        return self.read()

    def pause(self) -> None:
        """Stop it, so that its threads take no processor time from others."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it: politely, then not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.resume()
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        self._process.stdout.close()

    def __enter__(self) -> Helper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Engine processes of the fault campaign: started, spoken to, stopped and killed."""

from __future__ import annotations

import contextlib
import platform
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


class Failure(Exception):
    """Something that must not happen did."""


class ImpossibleHere(Exception):
    """This host lacks what was asked for."""


def command_prefix(program: Path) -> list[str]:
    """ThreadSanitizer of gcc 12 cannot place its shadow memory under wide address randomisation."""
    return ["setarch", platform.machine(), "-R"] if b"__tsan_init" in program.read_bytes() else []


class Node:
    """One `fault_node` process. Ends with `end` (in good order) or `kill`; `close` makes sure that it did."""

    def __init__(
        self,
        program: Path,
        transport: str,
        memory: str,
        seed: int,
        *,
        bind: str = "127.0.0.1:0",
        security: str = "",
        plan: str = "",
    ) -> None:
        self.seed = seed
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._text = b""
        self.process = subprocess.Popen(
            [*command_prefix(program), program, transport, memory, bind, str(seed), security, plan],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=SANITIZER_OPTIONS,
        )
        greeting = self.hear(60.0)
        if greeting.startswith("error unsupported"):
            self.close()
            raise ImpossibleHere(greeting)
        self.endpoint, _space, self.node_id = greeting.partition(" ")
        if len(self.node_id) != 32:
            raise Failure(f"a node did not start: {greeting}\n{self.errors()}")

    @property
    def address(self) -> str:
        """As commands name it."""
        return f"{self.endpoint} {self.node_id}"

    def say(self, command: str) -> None:
        """Send a command; `hear` its answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then hear() says that it died
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()

    def hear(self, timeout_s: float) -> str:
        """The next line; `Failure` if none came, or the process died."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failure(f"no answer within {timeout_s:.0f} s\n{self.errors()}")
            more = self.process.stdout.read1(65536)
            if not more:
                raise Failure(f"process ended with {self.process.wait(10)}\n{self.errors()}")
            self._text += more
        line, _newline, self._text = self._text.partition(b"\n")
        return line.decode()

    def ask(self, command: str, timeout_s: float = 30.0) -> str:
        """Send a command and return the answer."""
        self.say(command)
        return self.hear(timeout_s)

    def must(self, command: str, timeout_s: float = 30.0) -> dict[str, int]:
        """As `ask`, but only "ok" will do; returns the numbers that it came with."""
        answer = self.ask(command, timeout_s)
        if answer.split(" ")[0] != "ok":
            raise Failure(f"{command!r} was answered with {answer!r}")
        return {name: int(value) for name, value in (word.split("=") for word in answer.split(" ")[1:])}

    def stop(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; `Failure` if a sanitizer had complained before."""
        self.process.kill()
        self.process.wait(30)
        self._check_errors()

    def end(self) -> None:
        """Let it close its engine and exit; `Failure` unless it does so without a complaint."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise Failure(f"a node did not end\n{self.errors()}") from None
        if status != 0:
            raise Failure(f"a node ended with {status}\n{self.errors()}")
        self._check_errors()

    def _check_errors(self) -> None:
        text = self.errors()
        if "Sanitizer" in text or "runtime error" in text:
            raise Failure(text)

    def errors(self) -> str:
        """What it wrote to standard error, at most the last 20,000 characters."""
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-20_000:]

    def close(self) -> None:
        """Make sure that nothing is left."""
        self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._errors.close()

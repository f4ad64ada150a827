"""Other people's transfer libraries as sides: two worker processes each, in an environment of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.transfer_bench.cases import Case
from benchmarks.transfer_bench.lines import Helper, HelperError
from benchmarks.transfer_bench.timing import Burst

MODULE = "benchmarks.transfer_bench.peer_worker"


@dataclass(frozen=True)
class Kind:
    """A library and its settings."""

    name: str
    worker: str
    env: dict[str, str] = field(default_factory=dict)


_QUIET = {"NIXL_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR"}
KINDS = (
    Kind("NIXL", "nixl", _QUIET),
    Kind("NIXL, no progress thread", "nixl-noprog", _QUIET),
    Kind("NIXL tcp", "nixl", {**_QUIET, "UCX_TLS": "tcp"}),
    Kind("NIXL tcp, no progress thread", "nixl-noprog", {**_QUIET, "UCX_TLS": "tcp"}),
    Kind("gloo", "gloo"),
    Kind("Mooncake tcp", "mooncake", _QUIET),
)


class PeerSide:
    """One kind. Its processes are stopped while it is not its turn, since some never sleep by themselves."""

    every = 2  # some take seconds for an operation

    def __init__(self, kind: Kind, python: Path, length: int, stack: contextlib.ExitStack) -> None:
        self.name = kind.name
        self._workers = [
            stack.enter_context(
                Helper([str(python), "-m", MODULE, kind.worker, role, str(length)], env=kind.env, quiet=True)
            )
            for role in ("initiator", "target")
        ]
        self._initiator, self._target = self._workers
        packages = [worker.read()["package"] for worker in self._workers]
        self.package = str(packages[0])
        self._initiator.ask({"do": "connect", "about": self._target.ask({"do": "serve"})["about"]})
        self._expected_s: dict[str, float] = {}
        for worker in self._workers:
            worker.pause()

    @property
    def pids(self) -> Sequence[int]:
        return [worker.pid for worker in self._workers]

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        for worker in self._workers:
            worker.resume()
        yield
        for worker in self._workers:
            worker.pause()

    def prepare(self, case: Case) -> None:
        with self._awake():
            for worker in self._workers:
                worker.ask({"do": "prepare", "size": case.size, "count": case.count})
        self._expected_s = {}

    def burst(self, op: str, seconds: float) -> Burst:
        with self._awake():
            got = self._initiator.ask(
                {
                    "do": "burst",
                    "op": op,
                    "seconds": seconds,
                    "pids": list(self.pids),
                    "expected_s": self._expected_s.get(op, 0.0),
                }
            )
        self._expected_s[op] = min(got["took_s"])
        return Burst(tuple(got["took_s"]), got["cpu_s"])

    def verify(self, op: str) -> None:
        source, sink = (self._target, self._initiator) if op == "read" else (self._initiator, self._target)
        from_side, to_side = ("there", "here") if op == "read" else ("here", "there")
        with self._awake():
            source.ask({"do": "fill", "where": from_side, "salt": 7})
            sink.ask({"do": "fill", "where": to_side, "salt": 8})
            self._initiator.ask({"do": "run", "op": op})
            wrong = sink.ask({"do": "check", "where": to_side, "content": from_side, "salt": 7})["wrong"]
        if wrong != -1:
            raise HelperError(f"{self.name}, {op}: block {wrong} has wrong bytes")


def peer_sides(
    python: Path, length: int, stack: contextlib.ExitStack, missing: Callable[[str, str], None]
) -> list[PeerSide]:
    """The peers that work here; `missing` is told the name of each other one, and why."""
    sides = []
    for kind in KINDS:
        with contextlib.ExitStack() as own:
            try:
                side = PeerSide(kind, python, length, own)
            except HelperError as error:
                missing(kind.name, str(error))
                continue
            stack.push(own.pop_all())
            sides.append(side)
    return sides

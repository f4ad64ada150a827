"""Redis and Mooncake's store, with their servers, as sides that take turns with ours."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from benchmarks.transfer_bench.cases import Case
from benchmarks.transfer_bench.lines import Helper, HelperError

MODULE = "benchmarks.store_bench.peer_worker"
START_S = 20.0
SEGMENT_BYTES = 1 << 30


class PeerSide:
    """One store as one client sees it."""

    def __init__(
        self,
        name: str,
        command: list[str],
        stack: contextlib.ExitStack,
        offered: int = 0,
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        quiet = {"GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR"}
        helper = Helper([*command, str(offered)], env={**quiet, **(env or {})}, quiet=True)
        self._worker = stack.enter_context(helper)
        self.package = str(self._worker.read()["package"])

    def prepare(self, case: Case) -> None:
        self._worker.ask({"do": "prepare", "size": case.size, "count": case.count})

    def burst(self, op: str, seconds: float) -> list[float]:
        took: list[float] = self._worker.ask({"do": "burst", "op": op, "seconds": seconds})["took_s"]
        return took


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    until = time.monotonic() + START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > until:
            raise HelperError(f"{what} did not start")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def _server(command: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def redis_sides(python: Path, folder: Path, stack: contextlib.ExitStack) -> list[PeerSide]:
    """One server that keeps all in memory, over its unix socket and over loopback."""
    program = shutil.which("redis-server")
    if program is None:
        raise HelperError("there is no redis-server (Debian: redis-server)")
    port, path = _free_port(), folder / "redis.sock"
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--unixsocket", str(path)]
    command += ["--save", "", "--appendonly", "no", "--maxmemory", str(1 << 30), "--dir", str(folder)]
    log = stack.enter_context((folder / "redis.log").open("wb"))
    process = stack.enter_context(_server(command, log))
    _wait(lambda: path.exists() and _answers(port), process, "redis-server")
    return [
        PeerSide("Redis, unix socket", [str(python), "-m", MODULE, "redis", str(path)], stack),
        PeerSide("Redis, loopback", [str(python), "-m", MODULE, "redis", f"127.0.0.1:{port}"], stack),
    ]


def mooncake_sides(python: Path, folder: Path, stack: contextlib.ExitStack) -> list[PeerSide]:
    """A master for each side. One client reads what another process holds, one what it holds itself."""
    return [
        mooncake_side("Mooncake store", python, folder, stack, own=False),
        mooncake_side("Mooncake store in the same process", python, folder, stack, own=True),
    ]


def mooncake_side(
    name: str, python: Path, folder: Path, stack: contextlib.ExitStack, *, own: bool
) -> PeerSide:
    """The values lie in the client itself if `own`, else in another client."""
    program = python.with_name("mooncake_master")
    if not program.exists():
        raise HelperError(f"there is no {program.name}")
    port, metrics = _free_port(), _free_port()
    master = [str(program), "--rpc_address=127.0.0.1", f"--rpc_port={port}", f"--metrics_port={metrics}"]
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = stack.enter_context(_server(master, log))
    _wait(lambda: _answers(port), process, "mooncake_master")
    command = [str(python), "-m", MODULE, "mooncake", f"127.0.0.1:{port}"]
    if not own:
        PeerSide("holder", command, stack, SEGMENT_BYTES)
    return PeerSide(name, command, stack, SEGMENT_BYTES if own else 0)


def peer_sides(
    python: Path, folder: Path, stack: contextlib.ExitStack, missing: Callable[[str, str], None]
) -> list[PeerSide]:
    """Those that work here; `missing` is told the name of each other one, and why."""
    sides: list[PeerSide] = []
    for name, make in (("Redis", redis_sides), ("Mooncake store", mooncake_sides)):
        with contextlib.ExitStack() as own:
            try:
                sides += make(python, folder, own)
            except HelperError as error:
                missing(name, str(error))
                continue
            stack.push(own.pop_all())
    return sides

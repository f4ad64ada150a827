"""Starts and stops real servers on loopback: vLLM instances and KVFerry's router. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.progress import ToolError, end_supervised, start_supervised, tail
from tools.supervise import descendants

_READY_TIMEOUT_S = 300.0
_IN_USE = ("address already in use", "errno 98")

VLLM_ENV = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    # One thread each and no pinning: several servers share few cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Otherwise the first request that asks for log probabilities waits for a C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
    # The one rank computes in the engine's process, as vLLM has it on a GPU. In one of its own, vLLM's way on
    # a CPU, it spins for a second after each step, and a wake-up that it misses costs five.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
# float32, so that a batch's make-up cannot tip a greedy choice; the rest keeps start-up short.
VLLM_FLAGS = (
    "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "8",
    "--block-size", "32", "--gpu-memory-utilization", "0.2",
)  # fmt: skip


def free_port() -> int:
    """A loopback TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Server:
    """One supervised server process tree. `command` may hold the word {port}; not thread-safe."""

    name: str
    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    health: str = "/health"
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    fixed_port: bool = False

    @property
    def url(self) -> str:
        """Where the server listens, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        """Start without waiting; a second start after kill() or stop() uses the same port."""
        if self.process is not None and self.process.poll() is None:
            raise ToolError(f"{self.name} is already running")
        if not self.port:
            self.port = free_port()
        arguments = [part.replace("{port}", str(self.port)) for part in self.command]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.process = start_supervised(arguments, env={**os.environ, **self.env}, output=out)
        return self

    def wait_ready(self, timeout_s: float = _READY_TIMEOUT_S) -> Server:
        """Wait for the health page. Raises ToolError with the end of the log when it does not come."""
        deadline = time.monotonic() + timeout_s
        while not self.healthy():
            if not self.running:
                text = tail(self.log, 60)
                if not self.fixed_port and any(words in text.lower() for words in _IN_USE):
                    self.fixed_port, self.port = True, 0  # somebody took the port in between: once more
                    self.start()
                    continue
                raise ToolError(f"{self.name} ended while starting\n{text}\nlog: {self.log}")
            if time.monotonic() > deadline:
                raise ToolError(
                    f"{self.name} was not ready after {timeout_s:.0f} s\n{tail(self.log)}\nlog: {self.log}"
                )
            time.sleep(0.1)
        return self

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self.process is not None and self.process.poll() is None

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Whether the health page answers 200 now."""
        try:
            with urllib.request.urlopen(self.url + self.health, timeout=timeout_s) as answer:
                return int(answer.status) == 200
        except (OSError, urllib.error.URLError):
            return False

    def pids(self) -> list[int]:
        """The server's processes, without the supervisor."""
        return descendants(self.process.pid) if self.process is not None else []

    def kill(self) -> None:
        """kill -9 every process of the server at once, as a crash would, and wait until they are gone."""
        if self.process is None:
            return
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_supervised(self.process)

    def ask_to_stop(self) -> None:
        """Begin stopping, without waiting for the end."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def stop(self) -> None:
        """Stop the server and all its processes; nothing happens when it is not running."""
        if self.process is not None:
            end_supervised(self.process)

    def detach(self) -> int:
        """Let the server live on after us; returns the supervisor's pid, to which SIGTERM means stop."""
        if self.process is None or self.process.stdin is None:
            raise ToolError(f"{self.name} is not running")
        self.process.stdin.write(b"detach\n")
        self.process.stdin.flush()
        return self.process.pid


def stop_all(servers: Sequence[Server]) -> None:
    """Stop several servers at the same time."""
    for server in servers:
        server.ask_to_stop()
    for server in servers:
        server.stop()


def vllm_server(
    name: str,
    python: Path,
    model: Path,
    log_dir: Path,
    *,
    kv: Mapping[str, object] | None = None,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Server:
    """A vLLM server, not started yet, that serves `model` under the name "model".

    `kv` is its --kv-transfer-config.
    """
    command = [
        str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--host", "127.0.0.1",
        "--port", "{port}", "--served-model-name", "model", *VLLM_FLAGS, *flags,
    ]  # fmt: skip
    if kv is not None:
        command += ["--kv-transfer-config", json.dumps(kv)]
    return Server(name, command, log_dir / f"{name}.log", {**VLLM_ENV, **(env or {})})


def router_server(
    python: Path,
    prefill: Sequence[Server],
    decode: Sequence[Server],
    log_dir: Path,
    *,
    flags: Sequence[str] = (),
    name: str = "router",
) -> Server:
    """KVFerry's router in front of the given servers, not started yet."""
    command = [
        str(python.parent / "kvferry"), "router", "--port", "{port}",
        "--prefill", ",".join(server.url for server in prefill),
        "--decode", ",".join(server.url for server in decode), *flags,
    ]  # fmt: skip
    return Server(name, command, log_dir / f"{name}.log")

"""A real etcd for tests: one or more members on loopback, to be killed, restarted and emptied.

It needs the program `etcd` 3.4 or later in PATH (Debian and Ubuntu: apt-get install etcd-server).
"""

from __future__ import annotations

import base64
import contextlib
import json
import platform
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvferry.testing.waiting import stop_process, wait_until

START_TIMEOUT_S = 60.0
INSTALL = "apt-get install etcd-server (Debian, Ubuntu), or put etcd 3.4 or later into PATH"
_ATTEMPTS = 5
# Of ours it gets nothing: it would take ETCD_... for flags. 3.4 wants to be told that it may run on ARM.
_ENVIRONMENT = {"ETCD_UNSUPPORTED_ARCH": "arm64"} if platform.machine() == "aarch64" else {}


class EtcdCluster:
    """`members` processes with their data below `folder`; a context manager that ends them.

    `arguments`: further ones of each member; `scheme`: https if they ask for TLS. The addresses stay the same
    over restarts: ports are taken from below those that the kernel gives to others. `prefix`: a command that
    becomes the one behind it, e.g. in a network namespace, where `host` is its address.
    """

    def __init__(
        self,
        folder: Path,
        members: int = 1,
        *,
        arguments: Sequence[str] = (),
        scheme: str = "http",
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise RuntimeError(f"these tests need etcd: {INSTALL}")
        self._program = program
        self._folder = folder
        self._arguments = list(arguments)
        self._scheme = scheme
        self._host = host
        self._prefix = tuple(prefix)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        self._clients: list[int] = []
        self._peers: list[int] = []

    def __enter__(self) -> Self:
        for attempt in range(_ATTEMPTS):
            ports = _free_ports(2 * len(self._processes))
            self._clients, self._peers = ports[::2], ports[1::2]
            try:
                self.start()
                self.wait_ready()
            except RuntimeError:
                self.stop()
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return self
        raise AssertionError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URLs of the members."""
        return tuple(f"{self._scheme}://{self._host}:{port}" for port in self._clients)

    @property
    def address(self) -> str:
        """What `cluster.store` is set to."""
        scheme = {"http": "etcd", "https": "etcds"}[self._scheme]
        return f"{scheme}://" + ",".join(f"{self._host}:{port}" for port in self._clients)

    def start(self) -> None:
        """Start the members that do not run."""
        for index, process in enumerate(self._processes):
            if process is None:
                self._processes[index] = self._start(index)

    def kill(self, *indices: int) -> None:
        """Kill members (SIGKILL), all if none is named."""
        for index in indices or range(len(self._processes)):
            process, self._processes[index] = self._processes[index], None
            if process is not None:
                process.kill()
                process.wait()

    def freeze(self, index: int) -> None:
        """Stop a member (SIGSTOP): its connections stay, and nothing answers."""
        process = self._processes[index]
        assert process is not None
        stop_process(process)

    def empty(self) -> None:
        """Remove the data of all members; they must not run."""
        assert not any(self._processes)
        for index in range(len(self._processes)):
            shutil.rmtree(self._folder / f"member{index}", ignore_errors=True)

    def stop(self) -> None:
        """End all members and remove their data."""
        self.kill()
        self.empty()

    def wait_ready(self) -> None:
        """Wait until every running member takes writes. Raises RuntimeError if one ended."""
        for index, process in enumerate(self._processes):
            if process is not None:
                wait_until(lambda index=index: self._is_ready(index), START_TIMEOUT_S)  # type: ignore[misc]

    def request(self, path: str, message: Mapping[str, Any], index: int = 0) -> dict[str, Any]:
        """Send one request past our client, as an attacker or an administrator would. Raises OSError."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._clients[index]}{path}",
            json.dumps(message).encode(),
            {"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=5.0) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def require_password(self, user: str, password: str) -> None:
        """Turn authentication on, with `root` (password "root") and a user who may do everything."""
        for name, word in (("root", "root"), (user, password)):
            self.request("/v3/auth/user/add", {"name": name, "password": word})
            self.request("/v3/auth/user/grant", {"user": name, "role": "root"})
        self.request("/v3/auth/enable", {})

    def put(self, key: str, value: bytes, **fields: str) -> None:
        """Write a key past our client."""
        self.request("/v3/kv/put", {"key": _text(key.encode()), "value": _text(value), **fields})

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        client = self.urls[index]
        peers = [f"http://{self._host}:{port}" for port in self._peers]
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"member{index}.log"
        arguments = {
            "name": f"member{index}",
            "data-dir": str(self._folder / f"member{index}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers[index],
            "initial-advertise-peer-urls": peers[index],
            "initial-cluster": ",".join(f"member{n}={url}" for n, url in enumerate(peers)),
            "heartbeat-interval": "50",
            "election-timeout": "500",  # so that a lease may last one second
            "log-level": "error",
        }
        with log.open("ab") as output:
            return subprocess.Popen(
                [
                    *self._prefix,
                    self._program,
                    *(f"--{name}={value}" for name, value in arguments.items()),
                    *self._arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_ENVIRONMENT,
            )

    def _is_ready(self, index: int) -> bool:
        process = self._processes[index]
        if process is None or process.poll() is not None:
            log = (self._folder / f"member{index}.log").read_text(errors="replace")[-1000:]
            raise RuntimeError(f"etcd ended while it started: {log}")
        if self._prefix:
            return self._answers_there(index)
        if self._scheme == "https":
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._clients[index]), 1.0).close()
                return True
            return False
        try:
            self.request("/v3/kv/put", {"key": _text(b"ready"), "value": ""}, index)
            self.request("/v3/kv/deleterange", {"key": _text(b"ready")}, index)
        except urllib.error.HTTPError as error:
            return error.code in (400, 401)  # authentication is on: it answers
        except OSError:
            return False
        return True

    def _answers_there(self, index: int) -> bool:
        """Ask for its health from where it runs."""
        ask = f"import urllib.request as r; r.urlopen({self.urls[index]!r} + '/health', timeout=5)"
        done = subprocess.run(
            [*self._prefix, sys.executable, "-c", ask], stderr=subprocess.DEVNULL, timeout=30, check=False
        )
        return done.returncode == 0


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody uses, below those that the kernel gives out."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    deadline = time.monotonic() + START_TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        port = random.randrange(10240, max(lowest, 12288))
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found

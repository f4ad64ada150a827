"""No process of a supervised server may outlive it or whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.progress import ToolError
from tools.servers import Server, stop_all
from tools.supervise import descendants

SUPERVISOR = Path(__file__).resolve().parents[3] / "tools" / "supervise.py"

# A server with a child in a session of its own (which a process-group kill would miss) and a deaf grandchild.
TREE = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
middle = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {deaf!r}]); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", middle], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""

SERVER = """
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""


def until(condition: Callable[[], object], timeout_s: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def start_tree() -> tuple[subprocess.Popen[bytes], list[int]]:
    process = subprocess.Popen(
        [sys.executable, str(SUPERVISOR), sys.executable, "-c", TREE],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert until(lambda: len(descendants(process.pid)) == 3)
    return process, descendants(process.pid)


def test_sigterm_ends_the_whole_tree() -> None:
    process, pids = start_tree()
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert until(lambda: not any(map(running, pids)))
    process.stdin.close()


def test_starter_that_goes_away_ends_the_whole_tree() -> None:
    process, pids = start_tree()
    process.stdin.close()  # what the kernel does when the starter is killed
    process.wait(60)
    assert until(lambda: not any(map(running, pids)))


def test_server_that_crashes_takes_its_children_along() -> None:
    process, pids = start_tree()
    os.kill(pids[0], signal.SIGKILL)
    assert process.wait(60) == 128 + signal.SIGKILL
    assert until(lambda: not any(map(running, pids)))
    process.stdin.close()


def test_supervisor_that_is_killed_takes_the_server_along() -> None:
    process, pids = start_tree()
    try:
        process.kill()
        process.wait(60)
        assert until(lambda: not running(pids[0]))
    finally:
        for pid in pids[1:]:
            os.kill(pid, signal.SIGKILL)
        process.stdin.close()


def test_detached_server_outlives_its_starter_until_told_to_stop() -> None:
    process, pids = start_tree()
    process.stdin.write(b"detach\n")
    process.stdin.close()  # the line is read before the end
    time.sleep(0.5)
    assert all(map(running, pids))
    process.terminate()
    process.wait(60)
    assert until(lambda: not any(map(running, pids)))


def web_server(tmp_path: Path, code: str = SERVER) -> Server:
    return Server("web", [sys.executable, "-c", code, "{port}"], tmp_path / "web.log", health="/")


def test_server_restarts_on_its_port_after_a_kill(tmp_path: Path) -> None:
    server = web_server(tmp_path).start().wait_ready(20)
    try:
        port = server.port
        server.kill()
        assert not server.healthy()
        assert server.pids() == []
        server.start().wait_ready(20)
        assert server.port == port
    finally:
        stop_all([server])
    assert not server.running


def test_server_that_ends_while_starting_shows_its_log(tmp_path: Path) -> None:
    server = web_server(tmp_path, "raise SystemExit('no such model')").start()
    with pytest.raises(ToolError, match="no such model"):
        server.wait_ready(20)
    server.stop()


def test_server_that_never_gets_ready_is_reported(tmp_path: Path) -> None:
    server = web_server(tmp_path, "import time; time.sleep(60)").start()
    with pytest.raises(ToolError, match="not ready after 1 s"):
        server.wait_ready(1.0)
    server.stop()
    assert server.pids() == []

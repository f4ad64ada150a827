"""The servers that ./demo --keep left running: a small record of them, and their end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tools.cache import cache_root
from tools.progress import ToolError, say
from tools.servers import Server

_STOP_TIMEOUT_S = 45.0


def _record() -> Path:
    return cache_root() / "demo-kept.json"


def _started_at(pid: int) -> str:
    """When the kernel started a process (a later one may have its number); "" if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rsplit(")", 1)[1].split()
    return "" if fields[0] == "Z" else fields[19]


def _living() -> list[int]:
    try:
        entries = json.loads(_record().read_text())["supervisors"]
    except (OSError, ValueError, KeyError):
        return []
    return [pid for pid, started in entries if _started_at(pid) == started != ""]


def refuse_second() -> None:
    """Raise ToolError while servers of an earlier --keep are up."""
    if _living():
        raise ToolError("the servers of an earlier ./demo --keep are still up; stop them with ./demo --stop")


def detach(servers: Sequence[Server], logs: Path) -> None:
    """Let the servers live on, and remember them."""
    # Recorded first: whatever happens next, ./demo --stop finds them.
    pids = [server.process.pid for server in servers if server.process is not None]
    entries = [(pid, _started_at(pid)) for pid in pids]
    _record().write_text(json.dumps({"supervisors": entries, "logs": str(logs)}))
    for server in servers:
        server.detach()


def stop() -> int:
    """Stop what an earlier --keep left up; returns an exit status."""
    living = _living()
    for pid in living:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while left := _living():
        if time.monotonic() > deadline:
            raise ToolError(f"still running after {_STOP_TIMEOUT_S:.0f} s: {left}")
        time.sleep(0.1)
    if living:
        logs = json.loads(_record().read_text()).get("logs", "")
        if Path(logs).name.startswith("kvferry-demo-"):
            shutil.rmtree(logs, ignore_errors=True)
    _record().unlink(missing_ok=True)
    say(f"{len(living)} servers stopped" if living else "no servers of an earlier ./demo --keep are up")
    return 0

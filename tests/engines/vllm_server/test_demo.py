"""./demo works, and leaves no process behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from tools.supervise import descendants

from engines.harness import ROOT, complete, completion_body, until, vllm_python

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MARK = "KVFERRY_DEMO_TEST"


def living(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Demo:
    """One run of ./demo with the tiny model, its output in a file; its processes carry a mark."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.mark = uuid.uuid4().hex
        self._seen: set[int] = set()
        self.output = folder / "output.txt"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                ["bash", str(ROOT / "demo"), "--model", "tiny", *flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: self.mark},
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, words: str, timeout_s: float = 240.0) -> None:
        def seen() -> bool:
            if words in self.text():
                return True
            assert self.process.poll() is None, self.text()
            return False

        until(seen, f"'{words}' in the demo's output", timeout_s)

    def survivors(self) -> list[int]:
        """Every living process that this demo started, itself included."""
        # vLLM's processes overwrite their environment with their title: they are found below a marked one.
        marked = self._marked()
        self._seen.update(marked, *(descendants(pid) for pid in marked))
        return sorted(pid for pid in self._seen if living(pid))

    def _marked(self) -> list[int]:
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environment.split(b"\0"):
                found.append(int(entry.name))
        return found


@pytest.fixture(autouse=True)
def needs_the_environment() -> None:
    vllm_python()


@pytest.mark.parametrize(
    ("sign", "moment"),
    [
        (signal.SIGINT, "starting the prefill vLLM"),
        (signal.SIGTERM, "starting a single vLLM"),
        (signal.SIGKILL, "starting a single vLLM"),
    ],
)
def test_interrupted_demo_leaves_no_process(tmp_path: Path, sign: signal.Signals, moment: str) -> None:
    demo = Demo(tmp_path)
    demo.wait_for(moment)
    time.sleep(4.0)  # the servers' own children are being started now
    assert len(demo.survivors()) > 1
    demo.process.send_signal(sign)
    status = demo.process.wait(90)
    until(lambda: demo.survivors() == [], "every process of the demo has ended", 60.0)
    assert status == (130 if sign != signal.SIGKILL else -signal.SIGKILL)


def test_kept_demo_answers_until_it_is_stopped(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--keep")
    assert demo.process.wait(400) == 0, demo.text()
    text = demo.text()
    assert "7 of 7 answers are equal, token by token" in text
    assert "Moved:" in text
    url = text.split("curl ", 1)[1].split("/v1/", 1)[0]
    body = text.split("-d '", 1)[1].split("'", 1)[0]
    assert complete(url, json.loads(body)).text
    assert complete(url, completion_body("And now?", 4)).token_ids
    everything = demo.survivors()
    assert len(everything) > 6
    command = ["bash", str(ROOT / "demo"), "--stop"]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert stopped.returncode == 0, stopped.stderr
    assert "3 servers stopped" in stopped.stdout
    assert not [pid for pid in everything if living(pid)]

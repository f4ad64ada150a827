"""The test's side of real in-process vLLM engines: starts them by fork, drives them over unix sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.harness import model_folder, until, vllm_python

SCRIPT = Path(__file__).parent / "vllm_inprocess" / "engine_process.py"
START_S = 240.0
ANSWER_S = 120.0

Params = Mapping[str, Any]
PREFILL: Params = {"do_remote_decode": True}


class Answer(dict[str, Any]):
    """A finished request: tokens, finish, params, cached."""


class LabEngine:
    """One engine in a process of its own."""

    def __init__(self, name: str, pid: int, conn: socket.socket, log: Path) -> None:
        self.name, self.pid, self.log = name, pid, log
        self._conn = conn
        self._reader = conn.makefile("r")
        self._answers: dict[str, Answer] = {}
        self._count = 0
        self.call_ready()
        self.free_at_start = self.state()["free"]

    def call_ready(self) -> None:
        assert json.loads(self._reader.readline() or '{"ready": false}')["ready"], self.log.read_text()[
            -4000:
        ]

    def call(self, op: str, **arguments: Any) -> Any:
        """One operation and its answer."""
        self._conn.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
        line = self._reader.readline()
        assert line, f"engine {self.name} died:\n{self.log.read_text()[-4000:]}"
        return json.loads(line)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.call("state")
        return state

    def metric(self, key: str) -> float:
        """A metric's value now, by name and label values joined by `|`."""
        return float(self.state()["metrics"].get(key, 0.0))

    def counts(self, key: str, least: float = 1) -> None:
        """Wait until a metric has grown to `least`: threads hand their counts on ten times a second, and vLLM
        takes a connector's counts in when it steps."""

        def counted() -> bool:
            self.run([[1, 2, 3]], 1)
            return self.metric(key) >= least

        until(counted, f"{self.name} to count {least} of {key}")

    def add(self, prompt: Sequence[int], max_tokens: int, params: Params | None = None, **more: Any) -> str:
        """Add one request; returns its id."""
        self._count += 1
        name = f"{self.name}-{self._count}"
        self.call("add", id=name, prompt=list(prompt), max_tokens=max_tokens, params=params, **more)
        return name

    def add_sounds(
        self, prompt: str, sounds: Sequence[int], max_tokens: int, params: Params | None = None
    ) -> str:
        """Add one request with sounds; returns its id."""
        self._count += 1
        name = f"{self.name}-{self._count}"
        self.call(
            "add_sounds", id=name, prompt=prompt, sounds=list(sounds), max_tokens=max_tokens, params=params
        )
        return name

    def add_images(
        self, prompt: str, images: Sequence[int], max_tokens: int, params: Params | None = None
    ) -> str:
        """Add one request with images; returns its id. `params`: all of the request's extra arguments."""
        self._count += 1
        name = f"{self.name}-{self._count}"
        self.call(
            "add_images", id=name, prompt=prompt, images=list(images), max_tokens=max_tokens, params=params
        )
        return name

    def wait(self, ids: Sequence[str], timeout_s: float = ANSWER_S) -> list[Answer]:
        """The answers to requests, in order."""

        def complete() -> bool:
            self._answers.update({key: Answer(value) for key, value in self.call("take").items()})
            return all(name in self._answers for name in ids)

        until(complete, f"{self.name} to answer {len(ids)} requests", timeout_s, pause_s=0.01)
        return [self._answers.pop(name) for name in ids]

    def run(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, params: Sequence[Params | None] | None = None
    ) -> list[Answer]:
        """Add requests at once and wait for all answers."""
        each = params or [None] * len(prompts)
        return self.wait(
            [self.add(prompt, max_tokens, one) for prompt, one in zip(prompts, each, strict=True)]
        )

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Params]:
        """Prefill prompts and return what a proxy would pass on."""
        return [answer["params"] for answer in self.run(prompts, 1, [PREFILL] * len(prompts))]

    def all_blocks_free(self, timeout_s: float = 60.0) -> None:
        """Wait until the engine has no request and as many free blocks as at its start."""

        def free() -> bool:
            state = self.state()
            return not state["statuses"] and state["free"] == self.free_at_start

        until(free, f"{self.name} to have all its blocks back", timeout_s)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        """End the process and wait until it is gone."""
        self._reader.close()
        self._conn.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _connection(listener: socket.socket, pid: int) -> socket.socket | None:
    """The first connection of a process; None if it ended before, or took longer than `START_S`."""
    deadline = time.monotonic() + START_S
    listener.settimeout(1.0)
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            return listener.accept()[0]
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
    return None


class Lab:
    """Starts engines from one process that has imported vLLM."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines: dict[str, LabEngine] = {}
        self._count = 0
        self._log = (folder / "lab.log").open("wb")
        self._process = subprocess.Popen(
            [str(vllm_python()), str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (folder / "lab.log").read_text()[-4000:]

    def start(
        self,
        role: str | None,
        *,
        options: Params | None = None,
        policy: str | None = None,
        ec: Params | None = None,
        events: Params | None = None,
        kv: Params | None = None,
        namespace: str = "",
        environ: Mapping[str, str] | None = None,
        **llm: Any,
    ) -> LabEngine:
        """Start an engine. `role` None: without a connector. `options`: kv_connector_extra_config. `kv`: all
        of vLLM's KV transfer configuration, for another connector.

        `ec` and `events`: of vLLM's configurations of the encoder cache and of KV events. `namespace`: file
        of the network namespace to run in. `environ`: variables besides those of all engines. Raises
        AssertionError with the end of its log if it does not start.
        """
        self._count += 1
        name = f"{role or 'single'}{self._count}"
        path, log = self._folder / f"{name}.sock", self._folder / f"{name}.log"
        transfer: dict[str, Any] = dict(kv or {})
        if role:
            transfer = {
                "kv_role": role,
                "kv_connector_extra_config": {"log.level": "debug", **(options or {})},
            }
        if policy:
            transfer["kv_load_failure_policy"] = policy
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            model = {"model": str(model_folder("tiny")), **llm}
            order = {"name": name, "socket": str(path), "log": str(log), "llm": model, "kv": transfer}
            pid = self._fork(
                {**order, "ec": ec, "events": events, "namespace": namespace, "environ": environ}
            )
            conn = _connection(listener, pid)
            if conn is None:
                raise AssertionError(f"engine {name} did not start:\n{log.read_text()[-4000:]}")
        conn.settimeout(ANSWER_S)
        engine = LabEngine(name, pid, conn, log)
        self._engines[name] = engine
        return engine

    @contextlib.contextmanager
    def engine(self, role: str | None, **options: Any) -> Iterator[LabEngine]:
        """An engine for one test."""
        engine = self.start(role, **options)
        try:
            yield engine
        finally:
            self.stop(engine)

    def stop(self, engine: LabEngine) -> None:
        engine.close()
        self._engines.pop(engine.name, None)

    def close(self) -> None:
        """Stop everything."""
        for engine in list(self._engines.values()):
            self.stop(engine)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _fork(self, order: Params) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline())["pid"])

"""Real inference servers for tests: environments, models, fleets of servers, and what to ask of them.

`./test` names the interpreter of an environment that holds vLLM and KVFerry in KVFERRY_VLLM_PYTHON, and the
models' folders in KVFERRY_MODEL_<NAME>; without the first, these tests are skipped.
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tools.client import Answer, Metrics, complete, completion_body, metrics, stream
from tools.models import ensure_model
from tools.progress import tail
from tools.servers import Server, router_server, stop_all, vllm_server

ROOT = Path(__file__).resolve().parents[2]

PRODUCER = {"kv_connector": "KVFerryConnector", "kv_role": "kv_producer"}
CONSUMER = {
    "kv_connector": "KVFerryConnector",
    "kv_role": "kv_consumer",
    # Six servers on two cores: one may well be silent for the usual 5 s.
    "kv_connector_extra_config": {"handoff.control_timeout_s": 20},
}
BLOCK_SIZE = 32
# Small steps, so that long prompts are prefilled in several chunks.
FLAGS = ("--max-num-batched-tokens", "512")
# The page that empties the prefix cache exists in this mode only.
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}


def vllm_python() -> Path:
    """The interpreter with vLLM and KVFerry; skips the test when none is named."""
    named = os.environ.get("KVFERRY_VLLM_PYTHON")
    if not named:
        pytest.skip("KVFERRY_VLLM_PYTHON names no interpreter with vLLM; ./test sets it")
    return Path(named)


def model_folder(name: str) -> Path:
    """The folder of `tiny` or another model of tools/models.py, made if `./test` has not named it."""
    named = os.environ.get(f"KVFERRY_MODEL_{name.upper()}")
    return Path(named) if named else ensure_model(name)


@dataclass
class Fleet:
    """Running servers: `single` is the undisturbed reference, the others serve together."""

    model: Path
    single: Server
    prefill: list[Server]
    decode: list[Server]
    router: Server
    logs: Path
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def servers(self) -> list[Server]:
        return [self.single, *self.prefill, *self.decode, self.router]

    def expected(self, body: Mapping[str, Any]) -> Answer:
        """What the single vLLM answers; asked once per body."""
        key = repr(sorted(body.items()))
        if key not in self.answers:
            self.answers[key] = complete(self.single.url, body)
        return self.answers[key]

    def moved_tokens(self) -> float:
        """Prompt tokens that all decode servers took from another engine, ever."""
        return sum(external_tokens(metrics(server.url)) for server in self.decode)


def external_tokens(page: Metrics) -> float:
    return page.total("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")


def make_fleet(model: str, logs: Path, *, prefill: int = 1, decode: int = 1, **options: Any) -> Fleet:
    """Servers that are not started yet. Options: `env` for all vLLM servers, `flags` for them."""
    python, folder = vllm_python(), model_folder(model)
    env = {**DEV_MODE, **options.get("env", {})}
    flags = [*FLAGS, *options.get("flags", ())]

    def server(name: str, kv: Mapping[str, object] | None) -> Server:
        return vllm_server(name, python, folder, logs, kv=kv, env=env, flags=flags)

    single = server("single", None)
    producers = [server(f"prefill{i}", PRODUCER) for i in range(prefill)]
    consumers = [server(f"decode{i}", CONSUMER) for i in range(decode)]
    return Fleet(folder, single, producers, consumers, Server("router", [], logs / "router.log"), logs)


@contextmanager
def running(servers: Sequence[Server], timeout_s: float = 400.0) -> Iterator[Sequence[Server]]:
    """Start servers at the same time and wait until all are ready; all are stopped at the end."""
    with ExitStack() as stack:
        stack.callback(stop_all, servers)
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready(timeout_s)
        yield servers


@contextmanager
def running_fleet(fleet: Fleet) -> Iterator[Fleet]:
    """Start a fleet and its router."""
    engines = [fleet.single, *fleet.prefill, *fleet.decode]
    with running(engines):
        fleet.router = router_server(vllm_python(), fleet.prefill, fleet.decode, fleet.logs)
        with running([fleet.router]):
            yield fleet


def show_logs(servers: Sequence[Server], lines: int = 60) -> str:
    """The ends of the servers' logs, for a failing test's report."""
    return "\n".join(f"--- {server.name}: {server.log}\n{tail(server.log, lines)}" for server in servers)


def ask_concurrently(url: str, bodies: Sequence[Mapping[str, Any]], workers: int = 8) -> list[Answer]:
    """Streamed answers to all bodies, `workers` at a time, in the order of the bodies."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda body: stream(url, body), bodies))


def empty_prefix_cache(server: Server) -> None:
    """Make a vLLM server forget its cached prefixes; waits until no request holds a block."""
    request = urllib.request.Request(server.url + "/reset_prefix_cache", b"", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def until(condition: Callable[[], object], what: str, timeout_s: float = 60.0, pause_s: float = 0.1) -> None:
    """Wait for a condition; fails the test with `what` when it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(pause_s)


def is_idle(server: Server) -> bool:
    """Whether a vLLM server has no request and every KV block is free."""
    page = metrics(server.url)
    busy = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(page.total(name) == 0 for name in busy)


__all__ = [
    "BLOCK_SIZE",
    "Answer",
    "Fleet",
    "ask_concurrently",
    "complete",
    "completion_body",
    "empty_prefix_cache",
    "external_tokens",
    "is_idle",
    "make_fleet",
    "metrics",
    "model_folder",
    "running",
    "running_fleet",
    "show_logs",
    "stream",
    "until",
    "vllm_python",
]

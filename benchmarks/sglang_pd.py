"""Prefill/decode disaggregation on SGLang: KVFerry beside the real Mooncake over TCP.

    python benchmarks/sglang_pd.py [--json FILE] [--rounds N] [--tokens N] [--transport tcp|shm]

Two pairs of real SGLang servers on this machine, alike but for `--disaggregation-transfer-backend`: `kvferry`
and `mooncake_tcp`. Each round sends one new prompt through each pair, in turn, in changing order, and
compares the tokens. The model is tiny and random, but its KV cache is not: 64 KiB for each token.

`transfer_ms` is what SGLang's prefill server measures (`sglang:kv_transfer_latency_ms`), `gib_s` what that
makes of the bytes; `first_token_ms` is what a client sees, computation included. Medians over the rounds.
KVFerry moves over loopback TCP, too, unless `--transport shm` lets it use what one host offers.

Needs KVFERRY_SGLANG_PYTHON (`python3 -m tools.envs sglang`) and KVFERRY_MOONCAKE_PYTHON, an interpreter with
Mooncake's package (`python3 -m tools.envs bench-peers`), from which only that package is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "core")]

from tools.client import metrics  # noqa: E402
from tools.progress import run_logged  # noqa: E402
from tools.servers import Server, free_port  # noqa: E402

from engines.harness import running  # noqa: E402
from engines.sglang.environment import cpu_environment, sglang_python  # noqa: E402
from engines.sglang_pd.servers import post, sglang_server  # noqa: E402

MODEL = ("--layers", "8", "--heads", "8", "--kv-heads", "8", "--head-dim", "128", "--inter", "256")
TOKEN_BYTES = 8 * 2 * 8 * 128 * 4
FLAGS = ("--max-total-tokens", "8192")  # the last one given counts
MAKER = ROOT / "tests" / "engines" / "models" / "make_tiny_model.py"
LATENCY = "sglang:kv_transfer_latency_ms"
WARM_UP = 2  # rounds that do not count
ANSWER_TOKENS = 8


class Sample(NamedTuple):
    """One prompt through one pair."""

    transfer_ms: float
    first_token_ms: float
    tokens: list[int]


class Pair:
    """A prefill and a decode server, not started yet."""

    def __init__(self, backend: str, model: Path, logs: Path, env: dict[str, str]) -> None:
        self.port = free_port()
        port = ("--disaggregation-bootstrap-port", str(self.port))
        settings: dict[str, Any] = {"backend": backend, "env": env}
        self.prefill = sglang_server(f"{backend}-p", model, logs, "prefill", *port, *FLAGS, **settings)
        self.decode = sglang_server(f"{backend}-d", model, logs, "decode", *FLAGS, **settings)
        self._threads = ThreadPoolExecutor(2)

    @property
    def servers(self) -> list[Server]:
        return [self.prefill, self.decode]

    def ask(self, prompt: list[int]) -> Sample:
        """Send a prompt to both servers; wait for the answer, and until its transfer was counted."""
        before = self._counted()
        first_token_ms = self._send(prompt, 1)[1]
        transfer_ms = self._latest(before)
        tokens = self._send(prompt, ANSWER_TOKENS)[0]
        self._latest(before, count=2)
        return Sample(transfer_ms, first_token_ms, tokens)

    def _send(self, prompt: list[int], answer: int) -> tuple[list[int], float]:
        body = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": answer, "ignore_eos": True},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.port,
            "bootstrap_room": random.getrandbits(62),
        }
        started = time.perf_counter()
        both = [self._threads.submit(post, f"{server.url}/generate", body) for server in self.servers]
        status, reply = both[1].result(120)
        took_ms = (time.perf_counter() - started) * 1e3
        both[0].result(120)
        if status != 200:
            raise RuntimeError(f"{self.decode.name} answered {status}: {reply}")
        return reply["output_ids"], took_ms

    def _counted(self) -> tuple[float, float]:
        page = metrics(self.prefill.url)
        return page.total(f"{LATENCY}_count"), page.total(f"{LATENCY}_sum")

    def _latest(self, before: tuple[float, float], count: int = 1) -> float:
        deadline = time.monotonic() + 30
        while True:
            now = self._counted()
            if now[0] >= before[0] + count:
                return now[1] - before[1]
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.prefill.name} counts no transfer")
            time.sleep(0.05)


def mooncake_alone(python: Path, folder: Path) -> str:
    """A folder for PYTHONPATH with an environment's Mooncake, and nothing else of it."""
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    folder.mkdir()
    for found in (site / "mooncake", *site.glob("mooncake_transfer_engine*")):
        (folder / found.name).symlink_to(found)
    return str(folder)


def measure(rounds: int, tokens: int, transport: str, folder: Path) -> list[dict[str, Any]]:
    """Run it; see the module's text."""
    model, logs = folder / "model", folder / "logs"
    run_logged([sglang_python(), MAKER, model, *MODEL], folder / "log", "model", env=cpu_environment())
    mooncake = Path(os.environ["KVFERRY_MOONCAKE_PYTHON"])
    path = cpu_environment()["PYTHONPATH"]
    pairs = {
        "kvferry": Pair("kvferry", model, logs, {"KVFERRY_TRANSFER_TRANSPORTS": transport}),
        "mooncake_tcp": Pair(
            "mooncake_tcp",
            model,
            logs,
            {"PYTHONPATH": f"{path}{os.pathsep}{mooncake_alone(mooncake, folder / 'mooncake')}"},
        ),
    }
    samples: dict[str, list[Sample]] = {name: [] for name in pairs}
    with running([server for pair in pairs.values() for server in pair.servers], 600.0):
        for number in range(WARM_UP + rounds):
            prompt = [random.randrange(3, 2000) for _ in range(tokens)]
            order = list(pairs) if number % 2 else list(reversed(pairs))
            found = {name: pairs[name].ask(prompt) for name in order}
            if found["kvferry"].tokens != found["mooncake_tcp"].tokens:
                raise RuntimeError("the pairs give different tokens")
            for name, sample in found.items() if number >= WARM_UP else ():
                samples[name].append(sample)
        for pair in pairs.values():
            for server in pair.servers:
                server.kill()
    return [_row(name, each, tokens, transport) for name, each in samples.items()]


def _row(name: str, samples: list[Sample], tokens: int, transport: str) -> dict[str, Any]:
    transfer_ms = statistics.median(sample.transfer_ms for sample in samples)
    moved = tokens * TOKEN_BYTES
    return {
        "backend": name,
        "transport": transport if name == "kvferry" else "tcp",
        "tokens": tokens,
        "mib": round(moved / (1 << 20), 1),
        "rounds": len(samples),
        "transfer_ms": round(transfer_ms, 2),
        "fastest_ms": round(min(sample.transfer_ms for sample in samples), 2),
        "gib_s": round(moved / (1 << 30) / transfer_ms * 1e3, 2),
        "first_token_ms": round(statistics.median(sample.first_token_ms for sample in samples), 1),
        "same_tokens": True,
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=2000, help="length of a prompt")
    parser.add_argument("--transport", choices=("tcp", "shm"), default="tcp", help="what KVFerry may use")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as folder:
        rows = measure(options.rounds, options.tokens, options.transport, Path(folder))
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

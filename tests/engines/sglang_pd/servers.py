"""SGLang's prefill and decode servers on a CPU, with KVFerry between them, and what to ask of them."""

from __future__ import annotations

import json
import random
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.client import metrics
from tools.servers import Server, free_port

from engines.harness import until
from engines.sglang.environment import cpu_environment, sglang_python

PAGE = 16
CHUNK = 128  # tokens; longer prompts are computed in several steps
MAX_TOKENS = 12
WORDS = "The ferry carries what was computed on one shore to the other, page by page. "
# Lengths that end before, at and after the ends of pages and chunks, all with beginnings of their own.
PROMPTS = [f"{number}: {(WORDS * 30)[:length]}" for number, length in enumerate((3, 90, 200, 700, 1500))]
_FLAGS = (
    "--dtype", "float32", "--device", "cpu", "--attention-backend", "torch_native",
    "--disable-overlap-schedule", "--cuda-graph-backend-decode", "disabled",
    "--cuda-graph-backend-prefill", "disabled",
    "--max-total-tokens", "4096", "--max-running-requests", "8", "--page-size", str(PAGE),
    "--skip-server-warmup", "--enable-metrics", "--enable-cache-report", "--served-model-name", "model",
)  # fmt: skip
_RADIX_FLAGS = ("--disaggregation-decode-enable-radix-cache",)
# A page is an object for each half of the heads, so that one rank and two share.
_POOL_SETTINGS = json.dumps({"prefetch_threshold": PAGE, "pool.lookup_timeout_s": 60, "tp_lcm_size": 2})
_POOL_FLAGS = (
    "--hicache-storage-backend", "kvferry", "--hicache-storage-backend-extra-config", _POOL_SETTINGS,
    "--hicache-mem-layout", "page_head", "--hicache-ratio", "2",
)  # fmt: skip
_READING_FLAGS = ("--enable-hierarchical-cache", "--hicache-storage-prefetch-policy", "wait_complete")
READY_S = 300.0


def sglang_server(
    name: str,
    model: Path,
    logs: Path,
    mode: str,
    *flags: str,
    backend: str = "kvferry",
    env: Mapping[str, str] | None = None,
) -> Server:
    """A prefill or decode server, not started yet."""
    command = [
        str(sglang_python()), "-m", "sglang.launch_server", "--model-path", str(model), "--host", "127.0.0.1",
        "--port", "{port}", "--disaggregation-mode", mode, "--disaggregation-transfer-backend", backend,
        *_FLAGS, *flags,
    ]  # fmt: skip
    return Server(name, command, logs / f"{name}.log", {**cpu_environment(), **(env or {})})


def prefill_server(name: str, model: Path, logs: Path, *flags: str, **options: Any) -> Server:
    """A prefill server that computes long prompts in chunks."""
    chunks = ("--chunked-prefill-size", str(CHUNK))
    return sglang_server(name, model, logs, "prefill", *chunks, *flags, **options)


def pooling_server(name: str, model: Path, logs: Path, *flags: str, **options: Any) -> Server:
    """A prefill server that keeps prefixes in the pool. As a decode server, if it becomes one, it would never
    be idle without `_RADIX_FLAGS`.
    """
    return prefill_server(name, model, logs, *_POOL_FLAGS, *_READING_FLAGS, *_RADIX_FLAGS, *flags, **options)


def decode_server(name: str, model: Path, logs: Path, *flags: str, **options: Any) -> Server:
    """A decode server that keeps prefixes, so that only what it lacks is sent."""
    return sglang_server(name, model, logs, "decode", *_RADIX_FLAGS, *flags, **options)


def offloading_server(name: str, model: Path, logs: Path, *flags: str, **options: Any) -> Server:
    """A decode server that puts what it generates into the pool."""
    offload = ("--disaggregation-decode-enable-offload-kvcache", *_POOL_FLAGS)
    return sglang_server(name, model, logs, "decode", *offload, *flags, **options)


def bootstrap(port: int) -> tuple[str, ...]:
    """Flags of a server that others find at this port."""
    return ("--disaggregation-bootstrap-port", str(port))


def make_model(folder: Path, prompts: Sequence[str] = PROMPTS) -> list[dict[str, Any]]:
    """Make the model; return what it answers to each prompt: `prompt_tokens`, `tokens`, `text`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prompts.json").write_text(json.dumps(prompts))
    program = Path(__file__).with_name("model.py")
    arguments = [sglang_python(), program, folder, folder / "prompts.json", str(MAX_TOKENS)]
    done = subprocess.run(
        arguments, env=cpu_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the model could not be made: {done.stderr[-2000:]}")
    answers: list[dict[str, Any]] = json.loads((folder / "answers.json").read_text())
    return answers


@dataclass
class Pair:
    """A prefill server and the decode servers that it serves."""

    prefill: Server
    decode: Server
    other: Server  # with two ranks, and SGLang's fault injector on
    ports: dict[str, int]  # of the bootstrap servers, by the servers' names
    answers: list[dict[str, Any]]
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16))

    @property
    def bootstrap_port(self) -> int:
        """The prefill server's."""
        return self.ports[self.prefill.name]

    @property
    def servers(self) -> list[Server]:
        return [self.prefill, self.decode, self.other]

    def begin(
        self,
        prompt: str | Sequence[int],
        *,
        prefill: Server | None = None,
        decode: Server | None = None,
        max_tokens: int = MAX_TOKENS,
        timeout_s: float = 120.0,
    ) -> tuple[Future[tuple[int, Any]], Future[tuple[int, Any]]]:
        """Send a request to both servers at once; return what comes from the prefill and decode server."""
        both = (prefill or self.prefill, decode or self.decode)
        body = self._body(prompt, max_tokens, self.ports[both[0].name])
        first, second = (self.pool.submit(post, f"{one.url}/generate", body, timeout_s) for one in both)
        return first, second

    def _body(self, prompt: str | Sequence[int], max_tokens: int, port: int) -> dict[str, Any]:
        return {
            "text" if isinstance(prompt, str) else "input_ids": prompt,
            "rid": f"{random.getrandbits(64):x}",
            "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": port,
            "bootstrap_room": random.getrandbits(62),
        }

    def ask(self, prompt: str | Sequence[int], **options: Any) -> tuple[int, Any]:
        """Send a request to both; return status and body of the decode server's answer."""
        prefill, decode = self.begin(prompt, **options)
        answer = decode.result(180)
        prefill.result(180)
        return answer


def post(url: str, body: Mapping[str, Any], timeout_s: float = 120.0) -> tuple[int, Any]:
    """POST JSON; return status and body, whatever the status."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text = answer.read()
            return int(answer.status), json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")


def flush(server: Server) -> bool:
    """Empty a server's prefix cache; false while it is not idle."""
    request = urllib.request.Request(f"{server.url}/flush_cache", b"", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status) == 200
    except urllib.error.HTTPError:
        return False


def change_role(server: Server, role: str) -> bool:
    """Make it a `prefill` or a `decode` server; false while it is not idle. Raises RuntimeError otherwise."""
    status, answer = post(
        f"{server.url}/pd_role_switch", {"new_role": role, "decode_cuda_graph_memory_gb": 0}
    )
    if status != 200 and "not idle" not in str(answer):
        raise RuntimeError(f"{server.name} as {role} server: {status}: {answer}")
    return status == 200


def assert_idle_and_well(pair: Pair) -> None:
    """All servers run, none has a request, and a request gets the right answer."""
    for server in pair.servers:
        until(lambda server=server: flush(server), f"{server.name} being idle", timeout_s=180.0)
    status, answer = pair.ask(PROMPTS[2])
    assert status == 200, answer
    assert answer["output_ids"] == pair.answers[2]["tokens"]


def held_tokens(server: Server) -> float:
    """How many tokens of a server's KV pool are in use, as it last said."""
    return metrics(server.url).total("sglang:num_used_tokens")


__all__ = [
    "MAX_TOKENS",
    "PAGE",
    "PROMPTS",
    "Pair",
    "assert_idle_and_well",
    "bootstrap",
    "change_role",
    "decode_server",
    "flush",
    "free_port",
    "held_tokens",
    "make_model",
    "offloading_server",
    "pooling_server",
    "post",
    "prefill_server",
]

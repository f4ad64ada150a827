"""One SGLang server with HiCache on a CPU, its third level in the pool, and what to ask of it."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tools.servers import Server

from engines.sglang.environment import cpu_environment, sglang_python

PAGE = 16
PROMPT_TOKENS = 20 * PAGE + 1
ADMIN_KEY = "test"
# So that prompts of a few pages are looked for.
SETTINGS = json.dumps({"prefetch_threshold": PAGE, "pool.lookup_timeout_s": 60})
_MODEL = Path(__file__).resolve().parents[1] / "models" / "make_tiny_model.py"
_FLAGS = (
    "--dtype", "float32", "--device", "cpu", "--attention-backend", "torch_native",
    "--max-total-tokens", "4096", "--disable-overlap-schedule", "--cuda-graph-backend-decode", "disabled",
    "--cuda-graph-backend-prefill", "disabled", "--skip-server-warmup", "--page-size", str(PAGE),
    "--enable-hierarchical-cache", "--hicache-ratio", "2", "--enable-metrics", "--enable-cache-report",
    "--hicache-storage-prefetch-policy", "wait_complete", "--admin-api-key", ADMIN_KEY,
)  # fmt: skip


def make_model(folder: Path) -> Path:
    """Make the tiny model in `folder`."""
    subprocess.run(
        [sglang_python(), _MODEL, folder],
        env=cpu_environment(),
        check=True,
        timeout=300,
        capture_output=True,
    )
    return folder


@contextmanager
def other_weights(model: Path) -> Iterator[None]:
    """Have other weights of the model in its folder: rows of an attention's output, one further each."""
    file = model / "model.safetensors"
    before = file.read_bytes()
    length = int.from_bytes(before[:8], "little")
    tensor = json.loads(before[8 : 8 + length])["model.layers.0.self_attn.o_proj.weight"]
    first, last = (8 + length + at for at in tensor["data_offsets"])
    row = (last - first) // tensor["shape"][0]
    file.write_bytes(
        before[:first] + before[first + row : last] + before[first : first + row] + before[last:]
    )
    try:
        yield
    finally:
        file.write_bytes(before)


def hicache_server(name: str, model: Path, logs: Path, *flags: str, env: Mapping[str, str]) -> Server:
    """A server, not started yet."""
    command = [
        str(sglang_python()), "-m", "sglang.launch_server", "--model-path", str(model),
        "--host", "127.0.0.1", "--port", "{port}", *_FLAGS, *flags,
    ]  # fmt: skip
    return Server(name, command, logs / f"{name}.log", cpu_environment(**env))


class Told(NamedTuple):
    """What a server said."""

    tokens: list[int]
    from_storage: int  # prompt tokens that came from the third level
    cached: int  # and from anywhere


def ask(server: Server, seed: int, *, count: int = PROMPT_TOKENS, max_tokens: int = 12) -> Told:
    """Complete a prompt that stands for `seed`, greedily."""
    prompt = [(seed * 7919 + at * at * 31 + at * 17) % 1500 + 3 for at in range(count)]
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    answer = json.loads(call(server, "/generate", {"input_ids": prompt, "sampling_params": sampling}))
    meta = answer["meta_info"]
    details = meta.get("cached_tokens_details") or {}
    return Told(answer["output_ids"], details.get("storage", 0), meta.get("cached_tokens", 0))


def call(server: Server, path: str, body: Any = None, method: str | None = None) -> str:
    """Ask for a page as administrator. Raises RuntimeError with what it says unless the status is 200."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{path}: {error.code}: {error.read().decode('utf-8', 'replace')}") from None


def flush(server: Server) -> bool:
    """Empty the first two levels of the cache; false while the server is not idle."""
    try:
        call(server, "/flush_cache", {})
    except RuntimeError:
        return False
    return True

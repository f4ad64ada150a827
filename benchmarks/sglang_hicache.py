"""HiCache's third level on SGLang's own controller and host pool: pages put and got, and the time until a
prompt that is known there lies in the host pool, beside SGLang's file backend and Mooncake.

    python3 -m tools.envs sglang    # prints the PYTHON of an environment with SGLang and KVFerry
    PYTHON benchmarks/sglang_hicache.py [--json FILE] [--rounds N] [--mooncake VENV]

Runs on a CPU, with the stand-ins of tests/engines/sglang/shims. Backends take turns within each round, with
new pages each time; figures are medians. KVFerry's pool is a node in the engine's process (`pool.node` own).
Files lie in memory (/dev/shm), which is the best that a file backend can have. Mooncake (`--mooncake`: an
environment with its package, `python3 -m tools.envs bench-peers`) keeps pages in the engine's process, too,
with its master beside it. The copy from the host pool to the device comes after that, for all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SHIMS = ROOT / "tests" / "engines" / "sglang" / "shims"
CASES = ROOT / "tests" / "engines" / "sglang_inprocess"
sys.path.insert(0, str(ROOT))

from tools.servers import free_port  # noqa: E402

LAYERS, HEADS, DIM, PAGE = 16, 8, 64, 64  # bfloat16: a page of 64 tokens has 2 MiB
PAGES = 64
SPACE = 3 << 29  # bytes: more than all rounds need
LIKE_CPU = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
    "KVFERRY_BENCH_HICACHE": "1",
}


class Row(NamedTuple):
    """One figure; `against` names what it is compared with."""

    bench: str
    case: str
    ours: float
    unit: str
    against: str
    theirs: float
    ratio: float


def restart_like_cpu() -> None:
    """Begin again as SGLang needs it on a CPU, unless that is so already."""
    if "KVFERRY_BENCH_HICACHE" not in os.environ:
        path = f"{SHIMS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **LIKE_CPU, "PYTHONPATH": path})


class Backend:
    """SGLang's controller with one backend, and its host pool."""

    def __init__(self, name: str, extra: dict[str, Any]) -> None:
        import hicache_cases as kit
        import torch

        model = kit.CacheConfig(
            page_size=PAGE, components=(kit.ComponentType.FULL,), num_layers=LAYERS, kv_size=PAGES * PAGE,
            max_context_len=2 * PAGES * PAGE, head_num=HEADS, head_dim=DIM,
        )  # fmt: skip
        self.engine = kit.Engine()
        self.engine.start(kit.Case(name, model, "page_first", name, extra))
        self.controller = self.engine.tree.cache_controller
        self.pool = self.controller.storage_host_pool
        self.slots = self.pool.alloc(PAGES * PAGE)
        self.pool.kv_buffer.view(torch.uint8).random_(0, 255)
        self.page_bytes = sum(self.pool.get_page_buffer_meta(self.slots[:PAGE])[1])

    def put(self, hashes: list[str]) -> float:
        started = time.perf_counter()
        assert self.controller.page_set_func(hashes, self.slots), "not saved"
        return time.perf_counter() - started

    def get(self, hashes: list[str]) -> tuple[float, float]:
        """Return the seconds of the look-up alone, and of look-up and reading."""
        started = time.perf_counter()
        assert self.controller.storage_backend.batch_exists(hashes) == len(hashes), "not found"
        asked = time.perf_counter() - started
        operation = argparse.Namespace(request_id="r", is_terminated=lambda: False)
        assert self.controller.page_get_func(operation, hashes, self.slots) == len(hashes), "not read"
        return asked, time.perf_counter() - started

    def close(self) -> None:
        self.engine.doCleanups()


@contextlib.contextmanager
def mooncake(venv: Path) -> Iterator[dict[str, Any]]:
    """Mooncake's master, and the settings of a store that goes to it."""
    sys.path.append(str(next(venv.glob("lib/python3*/site-packages"))))
    port, metrics = free_port(), free_port()
    flags = ["--rpc_address=127.0.0.1", f"--rpc_port={port}", f"--metrics_port={metrics}"]
    master = subprocess.Popen(
        [venv / "bin" / "mooncake_master", *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield {
            "master_server_address": f"127.0.0.1:{port}",
            "metadata_server": "P2PHANDSHAKE",
            "local_hostname": "127.0.0.1",
            "protocol": "tcp",
            "global_segment_size": SPACE,
        }
    finally:
        master.terminate()
        master.wait(30)


def measure(backends: dict[str, Backend], rounds: int) -> dict[str, dict[str, float]]:
    """Return each backend's medians: put and get in GB/s, look-up and hit in milliseconds."""
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(rounds + 1):
        for name, backend in backends.items():
            hashes = [f"{turn * PAGES + page:064x}" for page in range(PAGES)]
            put = backend.put(hashes)
            asked, hit = backend.get(hashes)
            if turn == 0:  # to warm up
                continue
            for what, value in (("put", put), ("look-up", asked), ("hit", hit), ("get", hit - asked)):
                seconds[name][what].append(value)
    found: dict[str, dict[str, float]] = {}
    for name, backend in backends.items():
        size = backend.page_bytes * PAGES / 1e9
        middle = {what: statistics.median(values) for what, values in seconds[name].items()}
        found[name] = {
            "put": size / middle["put"],
            "get": size / middle["get"],
            "look-up": middle["look-up"] * 1e3,
            "hit": middle["hit"] * 1e3,
        }
    return found


def rows_of(found: dict[str, dict[str, float]]) -> list[Row]:
    titles = {
        "put": ("pages saved", "GB/s"),
        "get": ("pages read", "GB/s"),
        "look-up": ("a prompt looked up", "ms"),
        "hit": ("a prompt in the host pool", "ms"),
    }
    rows = []
    for other in (name for name in found if name != "kvferry"):
        for what, (title, unit) in titles.items():
            ours, theirs = found["kvferry"][what], found[other][what]
            rows.append(Row("sglang_hicache", title, ours, unit, other, theirs, ours / theirs))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 10), metavar="1-9")
    parser.add_argument("--mooncake", type=Path, help="an environment with Mooncake's package")
    options = parser.parse_args()
    restart_like_cpu()
    sys.path.insert(0, str(CASES))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = folder
        wanted: dict[str, dict[str, Any]] = {
            "kvferry": {"pool.node": "own", "store.dram": SPACE, "pool.namespace": "bench"},
            "file": {},
        }
        if options.mooncake:
            wanted["mooncake"] = stack.enter_context(mooncake(options.mooncake))
        backends = {name: Backend(name, extra) for name, extra in wanted.items()}
        for backend in backends.values():
            stack.callback(backend.close)
        found = measure(backends, options.rounds)
    rows = rows_of(found)
    for row in rows:
        theirs = f"{row.against:9s} {row.theirs:9.3f}  x{row.ratio:.2f}"
        print(f"{row.case:28s} {row.ours:9.3f} {row.unit:5s} {theirs}")
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # SGLang's kit leaves threads behind that never end


if __name__ == "__main__":
    sys.exit(main())

"""vLLM's own MooncakeConnector between two engines on a CPU, and a third engine without it.

A program for vLLM's environment, with the stand-in for Mooncake on the path: imports vLLM once, forks one
process per engine, and writes a line of JSON with the tokens of each. MooncakeConnector asks which
accelerator it runs on; for CPU runs only, the answer is 0.

    python pd_program.py MODEL FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
}
PROMPT = "Paged attention keeps the key value cache in blocks. " * 8
TOKENS = 16
START_S, REQUEST_S = 250.0, 100.0
ROLES = ("kv_producer", "kv_consumer", "plain")


def make_engine(model: str, role: str) -> Any:
    """An engine; the plain one has no connector."""
    from vllm import LLM
    from vllm.config import KVTransferConfig

    options: dict[str, Any] = {"enforce_eager": True, "max_model_len": 1024, "num_gpu_blocks_override": 256}
    options |= {"dtype": "float32", "block_size": 32, "seed": 0}
    if role != "plain":
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="MooncakeConnector", kv_role=role, engine_id=role,
            kv_connector_extra_config={"mooncake_protocol": "tcp"},
        )  # fmt: skip
    return LLM(model=model, max_num_seqs=4, **options)


def parameters(role: str, port: int) -> dict[str, Any] | None:
    """What a proxy tells each side of a request."""
    if role == "kv_producer":
        return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "one"}
    if role == "kv_consumer":
        bootstrap = {"remote_engine_id": "kv_producer", "remote_bootstrap_addr": f"http://127.0.0.1:{port}"}
        return {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": "one", **bootstrap}
    return None


def serve(role: str, model: str, folder: Path, port: int) -> dict[str, Any]:
    """One request on one engine; the producer goes on stepping until the consumer has ended."""
    from vllm import SamplingParams

    engine = make_engine(model, role).llm_engine
    (folder / f"{role}.up").touch()
    wait(lambda: all((folder / f"{each}.up").exists() for each in ROLES), START_S)
    told = parameters(role, port)
    sampling = SamplingParams(
        temperature=0,
        max_tokens=1 if role == "kv_producer" else TOKENS,
        extra_args={"kv_transfer_params": told} if told else None,
    )
    engine.add_request("one", PROMPT, sampling)
    ended: Any = None
    until = time.monotonic() + REQUEST_S
    while time.monotonic() < until:
        ended = next((out for out in engine.step() if out.finished), ended)
        if ended is not None and (role != "kv_producer" or (folder / "kv_consumer.done").exists()):
            return {"tokens": list(ended.outputs[0].token_ids), "cached": ended.num_cached_tokens}
        time.sleep(0.005)
    raise TimeoutError(f"{role}: no end within {REQUEST_S:g} s")


def wait(condition: Any, timeout_s: float) -> None:
    """Wait for what other processes do."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the other engines did not start")
        time.sleep(0.05)


def run(role: str, model: str, folder: Path, port: int) -> None:
    """A child process, to its end."""
    try:
        found: dict[str, Any] = serve(role, model, folder, port)
    except BaseException:  # noqa: BLE001  (told to the test)
        found = {"error": traceback.format_exc()}
    (folder / f"{role}.json").write_text(json.dumps(found))
    (folder / f"{role}.done").touch()
    os._exit(0)


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    os.environ.update({**ENVIRONMENT, "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(port)})
    import torch

    torch.accelerator.current_device_index = lambda: 0  # type: ignore[attr-defined]
    import vllm  # noqa: F401  (once, for all engines)

    children = []
    for role in ROLES:
        child = os.fork()
        if child == 0:
            run(role, model, folder, port)
        children.append(child)
    until = time.monotonic() + START_S + REQUEST_S + 30.0
    while time.monotonic() < until and not all((folder / f"{role}.done").exists() for role in ROLES):
        time.sleep(0.1)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()

"""How other connectors of vLLM are set up on one machine, with the servers that they need."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.servers import Server, free_port

READY_S = 300.0
GIB = 1 << 30


def example(folder: Path) -> dict[str, Any]:
    """vLLM's ExampleConnector, which keeps KV cache in files."""
    return {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }


def nixl(kv_role: str = "kv_both") -> tuple[dict[str, Any], dict[str, str]]:
    """vLLM's NixlConnector, over whatever UCX finds best between processes of one host."""
    environ = {
        "UCX_TLS": "tcp,self,sm",
        "UCX_NET_DEVICES": "lo",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
    }
    return {"kv_connector": "NixlConnector", "kv_role": kv_role}, environ


def lmcache(port: int) -> dict[str, Any]:
    """LMCache's connector to its server."""
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port},
    }


def lmcache_server(
    stack: ExitStack,
    python: Path,
    folder: Path,
    *,
    gib: int,
    chunk: int,
    l2: Mapping[str, Any] | None = None,
) -> int:
    """An `lmcache server`, until the stack ends; returns the port that engines talk to. With `l2` nothing
    stays in its memory."""
    port = free_port()
    command = [
        str(python), "-c", "from lmcache.cli.main import main; main()", "server",
        "--host", "127.0.0.1", "--port", str(port), "--http-host", "127.0.0.1", "--http-port", "{port}",
        "--chunk-size", str(chunk), "--l1-size-gb", str(gib), "--l1-init-size-gb", str(gib),
        "--eviction-policy", "LRU", "--supported-transfer-mode", "auto", "--disable-metrics",
    ]  # fmt: skip
    if l2 is not None:
        command += ["--l2-adapter", json.dumps(l2), "--l2-store-policy", "skip_l1"]
    env = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
    server = Server("lmcache", command, folder / "lmcache-server.log", env, "/healthcheck", free_port())
    stack.callback(server.stop)
    server.start().wait_ready(READY_S)
    return port


def mooncake_store(
    stack: ExitStack, python: Path, folder: Path, *, room: int, apart: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """vLLM's MooncakeStoreConnector with a store of `room` bytes: in the engine's own process, or `apart` in
    a process that outlives it. Its master runs until the stack ends.
    """
    port = free_port()
    master = ["mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={port}"]
    _daemon(stack, python, folder, [*master, f"--metrics_port={free_port()}"], port)
    where = {"metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{port}"}
    if apart:
        flags = [f"--{name}={value}" for name, value in {**where, "global_segment_size": room}.items()]
        own = free_port()
        client = ["mooncake_client", *flags, "--host=127.0.0.1", f"--port={own}", "--protocol=tcp"]
        _daemon(stack, python, folder, client, own)
    config = folder / f"mooncake-{port}.json"
    mode = "standalone-store" if apart else "embedded"
    size = {"global_segment_size": 0 if apart else room, "local_buffer_size": GIB // 4}
    config.write_text(json.dumps({"mode": mode, "protocol": "tcp", "device_name": "", **where, **size}))
    kv = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
    return kv, {"MOONCAKE_CONFIG_PATH": str(config)}


def _daemon(stack: ExitStack, python: Path, folder: Path, command: Sequence[str], port: int) -> None:
    """Start a program of Mooncake's until the stack ends, and wait until it listens. TimeoutError."""
    log = stack.enter_context((folder / f"{command[0]}-{port}.log").open("wb"))
    program = [str(python.parent / command[0]), *command[1:]]
    process = subprocess.Popen(program, stdout=log, stderr=subprocess.STDOUT)
    stack.callback(process.wait, READY_S)
    stack.callback(process.kill)
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"{command[0]} does not listen; see {log.name}")

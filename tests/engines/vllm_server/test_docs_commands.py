"""The commands of docs/vllm.md, as they are written there but for the model, sizes and folders."""

from __future__ import annotations

import base64
import json
import random
import shlex
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tools.servers import VLLM_ENV, VLLM_FLAGS, Server

from engines.harness import (
    BLOCK_SIZE,
    CONSUMER,
    DEV_MODE,
    PRODUCER,
    ROOT,
    complete,
    completion_body,
    empty_prefix_cache,
    external_tokens,
    is_idle,
    metrics,
    model_folder,
    running,
    until,
    vllm_python,
)
from engines.vllm_server.questions import token_ids
from kvferry.config import ClusterOptions
from kvferry.store import find_nodes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

START_S = 300.0
SAVED = "vllm:kvferry_pool_saved_blocks_total"
HITS = "vllm:external_prefix_cache_hits_total"


def commands(heading: str) -> list[str]:
    """The lines of the first block of code below a heading."""
    text = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1]
    return section.split("\n```\n", 2)[1].splitlines()


def argv(command: str, replaced: dict[str, str], more: Sequence[str] = ()) -> list[str]:
    """A command as this machine runs it: programs of the environment under test, other values."""
    for word, value in replaced.items():
        assert word in command, f"docs/vllm.md no longer says {word}: {command}"
        command = command.replace(word, value)
    program, *arguments = shlex.split(command.removesuffix(" &"))
    python = vllm_python()
    programs = {
        "kvferry": [str(python.parent / "kvferry")],
        "vllm": [str(python), "-m", "vllm.entrypoints.cli.main"],
    }
    return [*programs[program], *arguments, *more]


def port_of(command: str) -> str:
    return command.split("--port ", 1)[1].split(" ", 1)[0]


def vllm_of(command: str, model: str, logs: Path, env: dict[str, str]) -> Server:
    """A server of the docs, on a port of this machine's."""
    port = port_of(command)
    words = {"MODEL": str(model_folder(model)), f"--port {port}": "--port {port}"}
    flags = ["--host", "127.0.0.1", "--served-model-name", "model", *VLLM_FLAGS]
    name = f"vllm-{port}"
    return Server(name, argv(command, words, flags), logs / f"{name}.log", {**VLLM_ENV, **DEV_MODE, **env})


def router_of(command: str, servers: Sequence[Server], logs: Path) -> Server:
    """The router of the docs in front of these servers, which are named for the ports they have there."""
    words = {f"http://127.0.0.1:{one.name.partition('-')[2]}": one.url for one in servers}
    words[f"--port {port_of(command)}"] = "--port {port}"
    return Server("router", argv(command, words), logs / "router.log")


@pytest.fixture
def pooling(tmp_path: Path) -> Iterator[Server]:
    """The node and the server of the section on pooling."""
    node_command, server_command = commands("Pooling")
    # Not this machine's nodes; and hits are counted exactly, however slow the machine is.
    found = {"KVFERRY_CLUSTER_DIRECTORY": str(tmp_path / "run"), "KVFERRY_POOL_LOOKUP_TIMEOUT_S": "20"}
    ssd = tmp_path / "nvme"
    ssd.mkdir()
    sizes = {"8GiB": "256MiB", "50GiB": "256MiB", "/mnt/nvme": str(ssd)}
    node = Server("node", argv(node_command, sizes), tmp_path / "node.log", found)
    flags = ["--port", "{port}", "--host", "127.0.0.1", "--served-model-name", "model", *VLLM_FLAGS]
    server = Server(
        "vllm",
        argv(server_command, {"MODEL": str(model_folder("tiny"))}, flags),
        tmp_path / "vllm.log",
        {**VLLM_ENV, **DEV_MODE, **found, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},  # as vLLM has it by default
    )
    try:
        node.start()
        cluster = ClusterOptions(directory=found["KVFERRY_CLUSTER_DIRECTORY"])
        until(lambda: find_nodes(cluster), "the node to be found", START_S)
        with running([server], START_S):
            yield server
    finally:
        node.stop()


def test_the_commands_of_prefill_and_decode(tmp_path: Path, extent: Any) -> None:
    prefill_command, decode_command, router_command = commands("Start")[1:]
    kv = [json.loads(shlex.split(each)[-1]) for each in (prefill_command, decode_command)]
    own = {key: value for key, value in CONSUMER.items() if key != "kv_connector_extra_config"}
    assert kv == [PRODUCER, own]  # what all tests of this folder run
    if not extent.long:
        pytest.skip("three servers: --long")
    servers = [vllm_of(each, "tiny", tmp_path, {}) for each in (prefill_command, decode_command)]
    prefill, decode = servers
    with running(servers, START_S), running([router_of(router_command, servers, tmp_path)]) as [router]:
        for seed in (1, 2):  # by pull, then streamed
            body = completion_body(token_ids(300, seed=seed), 16, ignore_eos=True)
            alone = complete(decode.url, body)
            empty_prefix_cache(decode)
            assert complete(router.url, body).token_ids == alone.token_ids
        assert external_tokens(metrics(decode.url)) == 600
        until(lambda: is_idle(prefill), "all blocks to be free")


def picture(seed: int) -> dict[str, Any]:
    """An image of random colours, as chats carry them."""
    chooser, size = random.Random(seed), 56

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + chooser.randbytes(3 * size) for _ in range(size))
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def about(*pictures: dict[str, Any]) -> dict[str, Any]:
    """A question about images."""
    text = {"type": "text", "text": "What is different here, and what is the same?"}
    return completion_body([{"role": "user", "content": [*pictures, text]}], 16, ignore_eos=True)


LOADED = "vllm:kvferry_encoder_loads_total"


def test_the_commands_of_encode_prefill_and_decode(tmp_path: Path, extent: Any) -> None:
    """Images over HTTP: encoded by one server, prefilled by another, answered by a third, loaded twice."""
    node_command, *vllm_commands, router_command = commands("Encoder outputs (EPD)")
    assert len(vllm_commands) == 3
    if not extent.long:
        pytest.skip("four servers and a node: --long")
    found = {"KVFERRY_CLUSTER_DIRECTORY": str(tmp_path / "run"), "KVFERRY_ENCODER_WAIT_S": "60"}
    node = Server("node", argv(node_command, {"8GiB": "256MiB"}), tmp_path / "node.log", found)
    servers = [vllm_of(each, "images", tmp_path, found) for each in vllm_commands]
    encode, prefill, decode = servers
    questions = [about(picture(1)), about(picture(2), picture(3)), about(picture(3), picture(1))]
    try:
        node.start()
        cluster = ClusterOptions(directory=found["KVFERRY_CLUSTER_DIRECTORY"])
        until(lambda: find_nodes(cluster), "the node to be found", START_S)
        with (
            running(servers, START_S),
            running([router_of(router_command, servers, tmp_path)]) as [router],
        ):
            alone = [complete(decode.url, each).token_ids for each in questions]
            assert len({tuple(each) for each in alone}) == 3
            assert metrics(decode.url).total(LOADED, outcome="loaded") == 0
            empty_prefix_cache(decode)
            assert [complete(router.url, each).token_ids for each in questions] == alone
            assert external_tokens(metrics(decode.url)) > 0
            assert metrics(prefill.url).total(LOADED, outcome="loaded") == 3  # 1, 2 and 3; then it has them
            assert metrics(router.url).total("kvferry_router_encode_total", outcome="encoded") == 5
            # And a second server that computes a prompt with an image which the first one has loaded.
            fresh = about(picture(4))
            answer = complete(router.url, fresh).token_ids
            empty_prefix_cache(decode)
            assert complete(decode.url, fresh).token_ids == answer
            assert metrics(decode.url).total(LOADED, outcome="loaded") == 1
            assert metrics(prefill.url).total(LOADED, outcome="loaded") == 4
            assert encode.running
    finally:
        node.stop()


def test_the_two_commands_of_pooling(pooling: Server) -> None:
    body = completion_body(token_ids(20 * BLOCK_SIZE + 7, seed=900), 16, ignore_eos=True)
    first = complete(pooling.url, body)
    assert first.token_ids
    until(lambda: is_idle(pooling), "the prompt to be saved")
    empty_prefix_cache(pooling)
    assert complete(pooling.url, body).token_ids == first.token_ids
    until(lambda: metrics(pooling.url).total(HITS) == 20 * BLOCK_SIZE, "the prompt to come from the pool")
    until(lambda: metrics(pooling.url).total(SAVED, outcome="saved") == 20, "the saves to be counted")

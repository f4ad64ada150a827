"""The commands of docs/vllm.md, as they are written there but for the model, sizes and folders."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tools.servers import VLLM_ENV, VLLM_FLAGS, Server

from engines.harness import (
    BLOCK_SIZE,
    DEV_MODE,
    ROOT,
    complete,
    completion_body,
    empty_prefix_cache,
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
        {**VLLM_ENV, **DEV_MODE, **found},
    )
    try:
        node.start()
        cluster = ClusterOptions(directory=found["KVFERRY_CLUSTER_DIRECTORY"])
        until(lambda: find_nodes(cluster), "the node to be found", START_S)
        with running([server], START_S):
            yield server
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

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvferry.config import RouterOptions
from kvferry.errors import ConfigError
from kvferry.router import RouterServer
from kvferry.testing.kv_events import FakePublisher
from kvferry.testing.router_cluster import RouterCluster

SIZE = 4
PATIENCE_S = 30.0
TEXT = "the same words as ever, and then some"


class Cluster(RouterCluster):
    """A router with two prefill servers that publish events."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.publishers = [
            FakePublisher(f"ipc://{folder}/e{number}", f"ipc://{folder}/r{number}") for number in range(2)
        ]
        events = tuple(each.endpoint for each in self.publishers)
        replays = tuple(each.replay for each in self.publishers)
        timeout = {"prefix_timeout_s": PATIENCE_S, **options}
        super().__init__(2, 1, prefill_events=events, prefill_replays=replays, **timeout)

    async def holds(self, number: int, tokens: list[int]) -> None:
        """Have a prefill server hold these tokens, and wait until the router knows."""
        whole = tokens[: len(tokens) // SIZE * SIZE]
        self.publishers[number].publish(
            {
                "type": "BlockStored",
                "block_hashes": [f"{number}-{index}".encode() for index in range(len(whole) // SIZE)],
                "parent_block_hash": None,
                "token_ids": whole,
                "block_size": SIZE,
            }
        )
        await self.until(lambda: self.known()[number] >= len(whole) // SIZE)

    def known(self) -> list[int]:
        prefixes = self.router.core.prefixes
        assert prefixes is not None
        return list(prefixes.index.blocks().values())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)

    def served(self) -> list[int]:
        return [len(engine.calls) for engine in self.prefill]


@asynccontextmanager
async def cluster_of(folder: Path, **options: Any) -> AsyncIterator[Cluster]:
    made = Cluster(folder, **options)
    try:
        async with made:
            yield made
    finally:
        for publisher in made.publishers:
            publisher.close()


async def test_a_prompt_goes_where_most_of_it_is_cached(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.holds(0, [1, 2, 3, 4])
        await cluster.holds(1, list(range(1, 13)))
        for _ in range(3):
            await cluster.complete(prompt=list(range(1, 20)))
        assert cluster.served() == [0, 3]
        await cluster.complete(prompt=[1, 2, 3, 4, 9, 9])
        await cluster.complete(prompt=[[9] * 9])
        assert sum(cluster.served()) == 5
        assert not cluster.prefill[0].tokenized


async def test_text_and_chats_are_tokenized_by_a_prefill_server(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.holds(1, list(TEXT.encode()))
        for _ in range(2):
            await cluster.complete(prompt=TEXT)
        chat = {"model": "fake", "messages": [{"role": "user", "content": TEXT}], "tools": [], "seed": 1}
        for _ in range(2):
            await cluster.complete(path="/v1/chat/completions", prompt=None, **chat)
        assert cluster.served() == [0, 4]
        asked = cluster.prefill[0].tokenized
        assert asked[0] == {"model": "fake", "prompt": TEXT}
        assert asked[2] == {name: chat[name] for name in ("model", "messages", "tools")}


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"prompt": TEXT, "truncate_prompt_tokens": 5},
    ],
)
async def test_what_only_the_engine_can_tokenize_is_placed_in_turn(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.holds(1, list(TEXT.encode()))
        path = "/v1/chat/completions" if "messages" in more else "/v1/completions"
        for _ in range(4):
            await cluster.complete(path=path, **{"prompt": None, **more})
        assert cluster.served() == [2, 2]
        assert not cluster.prefill[0].tokenized


async def test_a_server_that_does_not_tokenize_costs_the_time_allowed_only(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, prefix_timeout_s=0.05) as cluster:
        await cluster.holds(1, list(TEXT.encode()))
        for engine in cluster.prefill:
            engine.tokenize_hold = asyncio.Event()
        for _ in range(4):
            await cluster.complete(prompt=TEXT)
        assert cluster.served() == [2, 2]


async def test_salts_and_adapters_are_looked_up_as_such(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        for salt, name, number in (("s", None, 0), (None, "ada", 1)):
            cluster.publishers[number].publish(
                {
                    "type": "BlockStored",
                    "block_hashes": [number],
                    "parent_block_hash": None,
                    "token_ids": [1, 2, 3, 4],
                    "block_size": SIZE,
                    "lora_name": name,
                    "extra_keys": [[each for each in (name, salt) if each]],
                }
            )
        await cluster.until(lambda: cluster.known() == [1, 1])
        body: dict[str, Any] = {"prompt": [1, 2, 3, 4, 5]}
        for _ in range(2):
            await cluster.complete(cache_salt="s", **body)
        assert cluster.served() == [2, 0]
        for _ in range(2):
            await cluster.complete(model="ada", **body)
        assert cluster.served() == [2, 2]


async def test_metrics_tell_what_is_known(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.holds(1, list(range(8)))
        await cluster.complete(prompt=list(range(9)))
        await cluster.complete(prompt=list(range(50, 60)))
        name = cluster.prefill[1].url
        core = cluster.router.core
        core.publish_health()
        core.publish_health()
        value = core.metrics.registry.value
        assert value("kvferry_router_prefix_blocks", backend=name) == 2
        assert value("kvferry_router_prefix_complete", backend=name) == 1
        assert value("kvferry_router_kv_events_total", backend=name, event="batches") == 1
        assert value("kvferry_router_prefix_lookups_total", outcome="hit") == 1
        assert value("kvferry_router_prefix_lookups_total", outcome="miss") == 1


@pytest.mark.parametrize(
    ("events", "replays", "text"),
    [
        (("ipc:///x",), (), "prefill_events has 1 addresses"),
        (("ipc:///x", "ipc:///y"), ("ipc:///z",), "prefill_replays has 1 addresses"),
        ((), ("ipc:///z", "ipc:///z2"), "prefill_events has 0 addresses"),
        (("nonsense", "ipc:///y"), (), "no address of KV events"),
    ],
)
async def test_addresses_that_do_not_fit_are_an_error(
    events: Any, replays: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[Any] = []  # that started, and said so, before the settings were found wrong
    monkeypatch.setattr("kvferry.router.server.open_native_releaser", engines.append)
    urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    options = RouterOptions(
        prefill=urls, decode=urls[:1], port=0, prefill_events=events, prefill_replays=replays
    )
    server = RouterServer(options, release_lease=None)
    with pytest.raises(ConfigError, match=text):
        await server.start()
    assert engines == []


async def test_health_says_whose_events_do_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.router.events.UNREACHED_S", 0.1)
    address = f"ipc://{tmp_path}/e"
    async with RouterCluster(1, 1, prefill_events=(address,)) as cluster:

        async def health(reasons: int) -> dict[str, Any]:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    page: dict[str, Any] = json.loads((await cluster.get("/health"))[1])
                    if len(page["reasons"]) == reasons:
                        return page
                    await asyncio.sleep(0.02)

        page = await health(1)
        assert page["status"] == "degraded"
        assert page["reasons"][0].startswith(
            f"KV events of {cluster.prefill[0].url}: nobody answers at {address} "
        )
        publisher = FakePublisher(address, f"ipc://{tmp_path}/r")
        try:
            assert (await health(0))["status"] == "healthy"
        finally:
            publisher.close()


def test_a_router_without_events_loads_neither_the_index_nor_zmq() -> None:
    code = "import sys, kvferry.router.server; print({'kvferry._native', 'numpy', 'zmq'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "set()"

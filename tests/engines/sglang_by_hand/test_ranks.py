"""Servers of one rank and of two, on two hosts, that share the pool: by hand, since they are many.

    KVFERRY_BY_HAND=1 KVFERRY_SGLANG_PYTHON=... pytest tests/engines/sglang_by_hand

There is a server and a node on either host, and a cable between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools.servers import Server, stop_all

from _netns import inside
from engines.harness import show_logs, until
from engines.hosts import Site, World, joined_hosts
from engines.sglang.environment import BY_HAND, sglang_python
from engines.sglang.hicache_server import (
    PROMPT_TOKENS,
    SETTINGS,
    Told,
    ask,
    call,
    flush,
    hicache_server,
    make_model,
)

READY_S = 300.0
PAGES_TOKENS = PROMPT_TOKENS - 1
CACHE = "/hicache/storage-backend"
POOL = ("--hicache-storage-backend", "kvferry", "--hicache-storage-backend-extra-config")
TWO_RANKS = ("--tp-size", "2")
BY_HEADS = json.dumps({**json.loads(SETTINGS), "tp_lcm_size": 2})

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500), BY_HAND]


class Engine:
    """A server on one of the hosts."""

    def __init__(self, site: Site, server: Server) -> None:
        self.site, self.server = site, server

    def ask(self, seed: int) -> Told:
        with inside(self.site.host):
            return ask(self.server, seed)

    def again(self, seed: int) -> Told:
        """Ask with the server's own caches empty."""
        with inside(self.site.host):
            until(lambda: flush(self.server), "the server is idle", 120)
            return ask(self.server, seed)

    def attach(self, settings: str) -> None:
        """Detach the pool, and attach it with other settings."""
        extra = {
            "hicache_storage_backend": "kvferry",
            "hicache_storage_backend_extra_config_json": settings,
            "hicache_storage_prefetch_policy": "wait_complete",
        }
        with inside(self.site.host):
            until(lambda: flush(self.server), "the server is idle", 120)
            call(self.server, CACHE, method="DELETE")
            call(self.server, CACHE, extra, "PUT")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    sglang_python()
    with joined_hosts(tmp_path_factory.mktemp("hosts")) as world:
        yield world


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama") / "model")


@contextmanager
def engines(
    world: World, model: Path, logs: Path, settings: str, near: tuple[str, ...], far: tuple[str, ...]
) -> Iterator[tuple[Engine, Engine]]:
    """A server on each host, with these flags."""
    made = []
    for name, site, flags in (("near", world.near, near), ("far", world.far, far)):
        # Without a bind both ranks want the machine's only NUMA node.
        env = {**site.environment, "KVFERRY_POOL_NODE": "attach", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
        if TWO_RANKS[0] not in flags:
            del env["SGLANG_CPU_OMP_THREADS_BIND"]
        made.append(Engine(site, hicache_server(name, model, logs, *POOL, settings, *flags, env=env)))
    servers = [each.server for each in made]
    try:
        for each in made:
            with inside(each.site.host):
                each.server.start()
        for each in made:
            with inside(each.site.host):
                each.server.wait_ready(READY_S)
        yield made[0], made[1]
    except BaseException:
        print(show_logs(servers))
        raise
    finally:
        stop_all(servers)


def whole(engine: Engine, seed: int) -> Told:
    """Ask until all whole pages of the prompt come from the pool."""
    answers: list[Told] = []

    def come() -> bool:
        answers.append(engine.again(seed))
        return answers[-1].from_storage == PAGES_TOKENS

    until(come, "all whole pages come from the pool", 180)
    return answers[-1]


def check_shared(one: Engine, two: Engine) -> None:
    """What either has saved, the other one loads, with the same tokens."""
    for seed, (writer, reader) in enumerate(((one, two), (two, one)), start=1):
        first = writer.ask(seed)
        assert first.from_storage == 0
        assert whole(writer, seed).tokens == first.tokens
        assert reader.ask(seed)[:2] == (first.tokens, PAGES_TOKENS)


def check_apart(one: Engine, two: Engine) -> None:
    """Each finds its own pages only, with the same tokens."""
    first = one.ask(3)
    assert whole(one, 3).tokens == first.tokens
    assert two.ask(3)[:2] == (first.tokens, 0)
    assert whole(two, 3).tokens == first.tokens


def test_one_rank_and_two_share_parts_of_heads_and_nothing_else(
    world: World, model: Path, tmp_path: Path
) -> None:
    layout = ("--hicache-mem-layout", "page_head")
    with engines(world, model, tmp_path, BY_HEADS, layout, (*layout, *TWO_RANKS)) as (one, two):
        check_shared(one, two)
        for each in (one, two):
            each.attach(SETTINGS)  # a page of a rank as one object
        check_apart(one, two)

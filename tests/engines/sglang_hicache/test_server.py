"""A real SGLang server with its third level in the pool: `--hicache-storage-backend kvferry`, nothing else.

The tests run in order and leave the server idle: what one has saved is known to the next ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tools.client import metrics

from engines.harness import until
from engines.sglang.hicache_server import PAGE, PROMPT_TOKENS, SETTINGS, Told, ask, call, flush
from engines.sglang_hicache.conftest import READY_S, Site
from kvferry.store import open_store
from kvferry.testing.nodes import NodeChild

PAGES_TOKENS = PROMPT_TOKENS - 1  # whole pages of a prompt
CACHE = "/hicache/storage-backend"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def node(site: Site) -> Iterator[NodeChild]:
    with site.node() as node:
        yield node


def objects(node: NodeChild) -> int:
    with open_store(node.config()) as store:
        return sum(1 for _ in store.scan())


def saved(site: Site, node: NodeChild, seed: int) -> Told:
    """Ask for a prompt until it is in the pool as well; return the first answer."""
    before = objects(node)
    first = ask(site.server, seed)
    until(lambda: objects(node) >= before + PAGES_TOKENS // PAGE, "all pages are in the pool", 120)
    return first


def from_pool(site: Site, seed: int) -> Told:
    """Ask again with all other caches empty."""
    forget(site)
    return ask(site.server, seed)


def forget(site: Site) -> None:
    """Empty the server's own caches."""
    until(lambda: flush(site.server), "the server is idle", 120)


def test_serves_without_a_node(site: Site) -> None:
    first = ask(site.server, 1)
    forget(site)
    again = ask(site.server, 1)
    assert (again.tokens, again.from_storage, again.cached) == (first.tokens, 0, 0)


def test_prompts_come_from_the_pool_with_the_same_tokens(site: Site, node: NodeChild) -> None:
    # the way to the node is tried again every few seconds
    until(lambda: flush(site.server) and ask(site.server, 2).from_storage > 0, "the node is found", 120)
    first = saved(site, node, 3)
    assert first.from_storage == 0
    again = from_pool(site, 3)
    assert again.tokens == first.tokens
    assert again.from_storage == PAGES_TOKENS


def test_statistics_are_among_sglangs(site: Site, node: NodeChild) -> None:
    saved(site, node, 4)
    from_pool(site, 4)

    def moved() -> bool:
        page = metrics(site.server.url)
        names = (
            "kvferry_pool_saved_bytes_total",
            "kvferry_pool_loaded_bytes_total",
            "prefetched_tokens_total",
        )
        return all(page.total(f"sglang:{name}") > 0 for name in names)

    until(moved, "all are counted", 60)


def test_detach_attach_and_clear(site: Site, node: NodeChild) -> None:
    first = saved(site, node, 5)
    assert json.loads(call(site.server, CACHE))["hicache_storage_backend"] == "kvferry"
    call(site.server, CACHE, method="DELETE")
    assert from_pool(site, 5)[:2] == (first.tokens, 0)
    extra = {"hicache_storage_backend": "kvferry", "hicache_storage_backend_extra_config_json": SETTINGS,
             "hicache_storage_prefetch_policy": "wait_complete"}  # fmt: skip
    wrong = {**extra, "hicache_storage_backend_extra_config_json": json.dumps({"store.drm": 1})}
    with pytest.raises(RuntimeError, match=r"store\.dram"):
        call(site.server, CACHE, wrong, "PUT")
    call(site.server, CACHE, extra, "PUT")
    call(site.server, CACHE, extra, "PUT")  # again: only the policies are set
    assert from_pool(site, 5)[:2] == (first.tokens, PAGES_TOKENS)
    call(site.server, f"{CACHE}/clear", {})
    assert objects(node) == 0
    assert from_pool(site, 5)[:2] == (first.tokens, 0)


def test_requests_go_on_when_the_node_dies(site: Site, node: NodeChild) -> None:
    first = saved(site, node, 6)
    node.kill()
    assert from_pool(site, 6)[:2] == (first.tokens, 0)
    with site.node() as other:
        until(lambda: from_pool(site, 6).from_storage == PAGES_TOKENS, "the next node is found", 180)
        assert objects(other) >= PAGES_TOKENS // PAGE
        # and a server that starts anew finds what the one before has saved
        site.server.kill()
        site.server.start().wait_ready(READY_S)
        assert ask(site.server, 6)[:2] == (first.tokens, PAGES_TOKENS)

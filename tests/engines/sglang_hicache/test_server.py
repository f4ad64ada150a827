"""A real SGLang server with its third level in the pool: `--hicache-storage-backend kvferry`, nothing else.

The tests run in order and leave the server idle: what one has saved is known to the next ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tools.client import metrics

from engines.harness import until
from engines.sglang.hicache_server import (
    PAGE,
    PROMPT_TOKENS,
    SETTINGS,
    Told,
    ask,
    call,
    flush,
    other_weights,
)
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


def again(site: Site, seed: int) -> Told:
    """Ask with the server's own caches empty."""
    until(lambda: flush(site.server), "the server is idle", 120)
    return ask(site.server, seed)


def from_pool(site: Site, seed: int) -> Told:
    """Ask again until all whole pages come from the pool, into which the first answer brings them."""
    answers: list[Told] = []

    def whole() -> bool:
        answers.append(again(site, seed))
        return answers[-1].from_storage == PAGES_TOKENS

    until(whole, "all whole pages come from the pool", 180)
    return answers[-1]


def test_serves_without_a_node(site: Site) -> None:
    first, second = ask(site.server, 1), again(site, 1)
    assert (second.tokens, second.from_storage, second.cached) == (first.tokens, 0, 0)


def test_prompts_come_from_the_pool_with_the_same_tokens(site: Site, node: NodeChild) -> None:
    first = ask(site.server, 2)
    assert first.from_storage == 0
    # the way to the node, which has just started, is tried again every few seconds
    assert from_pool(site, 2).tokens == first.tokens
    assert objects(node) >= PAGES_TOKENS // PAGE


def test_statistics_are_among_sglangs(site: Site, node: NodeChild) -> None:
    ask(site.server, 3)
    from_pool(site, 3)

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
    first = ask(site.server, 4)
    from_pool(site, 4)
    assert json.loads(call(site.server, CACHE))["hicache_storage_backend"] == "kvferry"
    call(site.server, CACHE, method="DELETE")
    assert again(site, 4)[:2] == (first.tokens, 0)
    extra = {
        "hicache_storage_backend": "kvferry",
        "hicache_storage_backend_extra_config_json": SETTINGS,
        "hicache_storage_prefetch_policy": "wait_complete",
    }
    wrong = {**extra, "hicache_storage_backend_extra_config_json": json.dumps({"store.drm": 1})}
    with pytest.raises(RuntimeError, match=r"store\.dram"):
        call(site.server, CACHE, wrong, "PUT")
    call(site.server, CACHE, extra, "PUT")
    call(site.server, CACHE, extra, "PUT")  # once more: only the policies are set
    assert from_pool(site, 4).tokens == first.tokens
    call(site.server, f"{CACHE}/clear", {})
    assert objects(node) == 0
    assert again(site, 4)[:2] == (first.tokens, 0)


def test_weights_that_are_replaced_have_pages_of_their_own(site: Site, node: NodeChild) -> None:
    def update(**more: str) -> None:
        call(site.server, "/update_weights_from_disk", {"model_path": str(site.model), **more})

    first = ask(site.server, 6)
    assert from_pool(site, 6).tokens == first.tokens
    with other_weights(site.model):
        update()  # by the same name
        new = ask(site.server, 6)
        assert new.from_storage == 0
        assert new.tokens != first.tokens
        assert from_pool(site, 6).tokens == new.tokens
    update()
    assert ask(site.server, 6)[:2] == (first.tokens, 0)
    update(weight_version="default")  # which is what they were called in the beginning
    assert from_pool(site, 6).tokens == first.tokens


def test_requests_go_on_when_the_node_dies(site: Site, node: NodeChild) -> None:
    first = ask(site.server, 5)
    from_pool(site, 5)
    node.kill()
    assert again(site, 5)[:2] == (first.tokens, 0)
    with site.node() as other:
        assert from_pool(site, 5).tokens == first.tokens
        assert objects(other) >= PAGES_TOKENS // PAGE
        # and a server that starts anew finds what the one before has saved
        site.server.kill()
        site.server.start().wait_ready(READY_S)
        assert ask(site.server, 5)[:2] == (first.tokens, PAGES_TOKENS)

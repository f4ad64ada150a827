"""Two hosts: network namespaces with a cable between them, a node of the pool on each, and etcd on one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from _netns import Host, Hosts, two_hosts
from engines.engine_lab import Lab
from engines.harness import until
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, numbered, tokens_of
from kvferry.testing.etcd import EtcdCluster
from kvferry.testing.nodes import NodeChild

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CABLE = "cable"
POOLED = "kvferry_pool_loaded_bytes_total"
SAVED = "kvferry_pool_saved_blocks_total|saved"
HANDED_OFF = "kvferry_handoff_loaded_bytes_total|tcp"
HITS = "external_prefix_cache_hits_total"
TOKEN_BYTES = 4 * 2 * 4 * 64 * 4  # layers, K and V, heads, head dim, float32
MEMBERS_S = 120.0


class Site(NamedTuple):
    """A host with its node. `options`: of engines there."""

    host: Host
    node: NodeChild
    options: dict[str, Any]

    def knows(self, members: int) -> bool:
        """Whether the node, and so its engines, know so many nodes of the cluster."""
        status = self.node.command("status", "--json", expect=None).stdout  # it may be degraded for a moment
        return bool(status) and len(json.loads(status)["members"]) == members


class World(NamedTuple):
    hosts: Hosts
    near: Site
    far: Site


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the cluster\n", encoding="ascii")
    secret.chmod(0o600)
    with ExitStack() as undo:
        hosts = undo.enter_context(two_hosts(CABLE))
        near = hosts.near
        etcd = undo.enter_context(EtcdCluster(tmp_path / "etcd", host=near.addresses[0], prefix=near.prefix))
        sites = []
        for name, host in (("near", hosts.near), ("far", hosts.far)):
            folder = tmp_path / name
            folder.mkdir(mode=0o700)
            settings = {
                "cluster.host": name,
                "cluster.lease_s": 6,
                "cluster.store": etcd.address,
                "transfer.bind": f"{host.addresses[0]}:0",
                "transfer.cluster_secret_file": str(secret),
            }
            environ = {
                f"KVFERRY_{key.upper().replace('.', '_')}": str(value) for key, value in settings.items()
            }
            environ["KVFERRY_STORE_SUSPECT_AFTER_S"] = "5"
            node = undo.enter_context(
                NodeChild(folder, "--dram", "96MiB", "--drain", "0", environ=environ, prefix=host.prefix)
            )
            options = {
                "cluster.directory": str(folder),
                "pool.enabled": "on",
                "pool.lookup_timeout_s": 20,  # hits are counted exactly, however slow the machine is
                **settings,
            }
            sites.append(Site(host, node, options))
        world = World(hosts, *sites)
        until(lambda: all(site.knows(2) for site in sites), "the nodes to know each other", MEMBERS_S)
        yield world


def whole_blocks(prompt: list[int]) -> int:
    return len(prompt) // BLOCK


def test_pool_and_hand_off_between_two_hosts(lab: Lab, reference, world: World) -> None:
    near, far = world.near, world.far
    with (
        lab.engine("kv_producer", options=near.options, namespace=near.host.namespace) as prefill,
        lab.engine("kv_consumer", options=far.options, namespace=far.host.namespace) as decode,
    ):
        # Saved by one, loaded by the other: the bytes cross the cable.
        asked = numbered(6, 150)
        assert tokens_of(prefill.run(asked, MAX_TOKENS)) == reference.tokens(asked)
        prefill.all_blocks_free()
        assert prefill.metric(SAVED) == sum((len(one) + MAX_TOKENS - 1) // BLOCK for one in asked)
        assert tokens_of(decode.run(asked, MAX_TOKENS)) == reference.tokens(asked)
        pooled = sum(whole_blocks(one) for one in asked) * BLOCK
        # A node that is suspected for a moment, on a machine that stands still, costs hits and nothing else.
        assert 0 < decode.metric(HITS) <= pooled
        assert decode.metric(POOLED) == decode.metric(HITS) * TOKEN_BYTES
        # What the pool has not, the last tokens, comes from the prefill server itself.
        decode.all_blocks_free()
        asked = numbered(6, 150, seed=1)
        saved = prefill.metric(SAVED) + sum(whole_blocks(one) for one in asked)
        params = prefill.prefill(asked)
        until(lambda: prefill.metric(SAVED) == saved, "the prompts to be saved")
        assert tokens_of(decode.run(asked, MAX_TOKENS, params)) == reference.tokens(asked)
        assert 0 < decode.metric(POOLED) <= 2 * pooled * TOKEN_BYTES
        assert decode.metric(HANDED_OFF) > 0
        assert decode.metric("kvferry_handoff_loads_total|failed") == 0
        assert decode.metric("kvferry_pool_loads_total|failed") == 0
        prefill.all_blocks_free()
        decode.all_blocks_free()
        # With the cable pulled out both go on by themselves, and together again when it is back.
        asked = numbered(4, 150, seed=2)
        params = prefill.prefill(asked)
        world.hosts.pull(CABLE)
        assert tokens_of(decode.run(asked, MAX_TOKENS, params)) == reference.tokens(asked)
        more = numbered(2, 150, seed=3)
        assert tokens_of(prefill.run(more, MAX_TOKENS)) == reference.tokens(more)
        world.hosts.plug_in(CABLE)
        prefill.all_blocks_free(60.0)
        decode.all_blocks_free(60.0)
        until(lambda: near.knows(2) and far.knows(2), "the nodes to know each other again", MEMBERS_S)
        fresh = iter(range(1000))

        def shared() -> bool:
            before = decode.metric(POOLED)
            new = numbered(1, 70, seed=100 + next(fresh))
            for engine in (prefill, decode):
                engine.run(new, 1)
                engine.all_blocks_free(60.0)
            return decode.metric(POOLED) > before

        until(shared, "blocks to cross the cable again", MEMBERS_S)

"""Two hosts that share a pool: network namespaces, a cable between them, a node on each, etcd on one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from _netns import Host, Hosts, two_hosts
from engines.harness import until
from kvferry.testing.etcd import EtcdCluster
from kvferry.testing.nodes import NodeChild

CABLE = "cable"
MEMBERS_S = 120.0


class Site(NamedTuple):
    """A host with its node. `settings`: of engines there."""

    host: Host
    node: NodeChild
    settings: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """The settings as variables."""
        return as_environment(self.settings)

    def knows(self, members: int) -> bool:
        """Whether the node, and so its engines, know so many nodes of the cluster."""
        status = self.node.command("status", "--json", expect=None).stdout  # it may be degraded for a moment
        return bool(status) and len(json.loads(status)["members"]) == members


class World(NamedTuple):
    hosts: Hosts
    near: Site
    far: Site


def as_environment(settings: dict[str, Any]) -> dict[str, str]:
    """Settings as the variables that set them."""
    return {f"KVFERRY_{key.upper().replace('.', '_')}": str(value) for key, value in settings.items()}


@contextmanager
def joined_hosts(folder: Path) -> Iterator[World]:
    """Make the hosts and wait until their nodes know each other; skips where there are no namespaces."""
    secret = folder / "secret"
    secret.write_text("a secret of the cluster\n", encoding="ascii")
    secret.chmod(0o600)
    with ExitStack() as undo:
        hosts = undo.enter_context(two_hosts(CABLE))
        near = hosts.near
        etcd = undo.enter_context(EtcdCluster(folder / "etcd", host=near.addresses[0], prefix=near.prefix))
        sites = []
        for name, host in (("near", hosts.near), ("far", hosts.far)):
            directory = folder / name
            directory.mkdir(mode=0o700)
            settings = {
                "cluster.host": name,
                "cluster.lease_s": 6,
                "cluster.store": etcd.address,
                "transfer.bind": f"{host.addresses[0]}:0",
                "transfer.cluster_secret_file": str(secret),
            }
            environ = {**as_environment(settings), "KVFERRY_STORE_SUSPECT_AFTER_S": "5"}
            node = undo.enter_context(
                NodeChild(directory, "--dram", "96MiB", "--drain", "0", environ=environ, prefix=host.prefix)
            )
            sites.append(Site(host, node, {"cluster.directory": str(directory), **settings}))
        world = World(hosts, *sites)
        until(lambda: all(site.knows(2) for site in sites), "the nodes to know each other", MEMBERS_S)
        yield world

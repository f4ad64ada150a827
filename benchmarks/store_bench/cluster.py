"""Nodes as child processes, and clients of them in this one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvferry.config import load_config
from kvferry.store import Store, open_store
from kvferry.testing.nodes import NodeChild, start_nodes


class Nodes:
    """Starts clusters, each in a folder of its own; all end with `stack`."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._number = itertools.count()

    def start_one(
        self, *flags: str, environ: Mapping[str, str] | None = None, stack: contextlib.ExitStack | None = None
    ) -> NodeChild:
        """A node with these settings."""
        return (stack or self._stack).enter_context(NodeChild(self._new_folder(), *flags, environ=environ))

    def start(self, count: int, *flags: str, stack: contextlib.ExitStack | None = None) -> list[NodeChild]:
        """So many nodes that know each other."""
        nodes = start_nodes(self._new_folder(), count, flags)
        for node in nodes:
            (stack or self._stack).enter_context(node)
        return nodes

    def _new_folder(self) -> Path:
        folder = self._folder / f"cluster-{next(self._number)}"
        folder.mkdir(0o700, parents=True)
        return folder

    def open(
        self,
        node: NodeChild,
        transports: Sequence[str] = ("shm", "tcp"),
        *,
        stack: contextlib.ExitStack | None = None,
    ) -> Store:
        """A client; with tcp alone, it is like one of another host."""
        values = {
            "store": {"node": node.advert.endpoint},
            "cluster": {"directory": node.cluster.directory, "name": node.cluster.name},
            "transfer": {"transports": list(transports)},
        }
        return (stack or self._stack).enter_context(open_store(load_config(values, environ={})))


def touch_memory(store: Store, bytes_: int) -> None:
    """Write to all of the node's memory once: later puts then find its pages there."""
    piece = memoryview(bytearray(1 << 20))
    keys = [b"touch-%d" % number for number in range(bytes_ // len(piece))]
    for result in store.put_many(keys, [piece] * len(keys)):
        if result.error is not None:
            raise result.error
    store.remove_many(keys)

"""Cases 4.4 and 4.11: a node is killed while it writes to its disk, files are cut; what is back is right."""

from __future__ import annotations

import time
from pathlib import Path

from tests.faults.store.values import content

from kvferry.store import Store
from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until

KEYS = [f"disk/{number}/{500_000 + number}" for number in range(120)]  # 60 MB, with 16 MiB of memory
LIMIT = 100 << 20


def node_on(directory: Path, ssd: Path) -> NodeChild:
    environ = {"KVFERRY_STORE_SSD_WRITE": "through"}
    flags = ("--dram", "16MiB", "--ssd", f"{ssd}:100MiB", "--drain", "0")
    return NodeChild(directory, *flags, environ=environ)


def right_or_absent(store: Store) -> int:
    """How many are there; none may be wrong."""
    found = 0
    for key in KEYS:
        data = store.get(key)
        assert data is None or data == content(key)
        found += data is not None
    return found


def written(store: Store) -> int:
    """How many objects the disk has taken."""
    return store.node_stats().counters["ssd_written_total"]


def exact_usage(store: Store, ssd: Path) -> bool:
    """What the node counts is what its files take, whole blocks included, and within the limit."""
    used = store.node_stats().ssd_used
    taken = sum(path.stat().st_blocks * 512 for path in ssd.rglob("*") if path.is_file())
    return used <= LIMIT and abs(used - taken) <= taken // 50


def test_a_killed_node_finds_its_objects_again(tmp_path: Path) -> None:
    ssd = tmp_path / "ssd"
    ssd.mkdir()
    with node_on(tmp_path, ssd) as node, node.open() as store:
        for number, key in enumerate(KEYS):
            store.put(key, content(key))
            wait_until(lambda least=number + 1: written(store) >= least, 60)  # a burst may outrun the disk
        gone = KEYS[3]
        store.remove(gone)
        store.put(f"late/{time.monotonic_ns()}/1", b"x")
    with node_on(tmp_path, ssd) as node, node.open() as store:
        assert right_or_absent(store) >= 90
        assert store.get(gone) is None
        wait_until(lambda: exact_usage(store, ssd), 30)
    largest = max((path for path in ssd.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size // 2 + 777)
    with node_on(tmp_path, ssd) as node, node.open() as store:
        assert right_or_absent(store) >= 10
        missing = [key for key in KEYS if not store.exists(key)]
        for key in missing:
            store.put(key, content(key))
        assert all(store.get(key) == content(key) for key in missing[-5:])
        wait_until(lambda: exact_usage(store, ssd), 30)

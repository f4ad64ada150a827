"""Calls of a store one of whose nodes is lost, or stands still."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.config import load_config
from kvferry.errors import KVFerryError, UnavailableError
from kvferry.store import Store, open_store
from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until

AGAIN_S = 0.3  # a node that was not there is tried again after 0.2 s


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes that must fail."""
    time.sleep(AGAIN_S)
    begin = time.monotonic()
    with pytest.raises(KVFerryError):
        call()
    return time.monotonic() - begin


def test_a_prefetch_waits_for_its_node_no_longer_than_it_is_of_use(tmp_path: Path) -> None:
    """In the node's place something listens that never answers."""
    with NodeChild(tmp_path, "--dram", "16MiB") as node, node.open() as store:
        store.put("key", b"value")
        node.kill()
        host, _, port = node.advert.endpoint.rpartition(":")
        with socket.create_server((host, int(port))):
            quickest = min(seconds_of(lambda: store.prefetch(["key"], within_s=0.1)) for _ in range(3))
            assert quickest < seconds_of(lambda: store.put("other", b"value", timeout_s=20))


def keys_that_are_looked_up_at(owner: Store, writer: Store, value: bytes) -> list[str]:
    """A few that another node holds, and this one knows of."""
    found: list[str] = []
    number = 0
    while len(found) < 3:
        number += 1
        before = owner.node_stats().directory_entries
        assert writer.put(f"key {number}", value).created
        if owner.node_stats().directory_entries > before:
            found.append(f"key {number}")
    return found


def test_pins_that_a_node_grants_too_late_are_given_back(tmp_path: Path) -> None:
    """It stood still while it was asked, and the reader went on. Their lease of 60 s is the net."""
    patient = {"KVFERRY_CLUSTER_LEASE_S": "30"}
    with (
        NodeChild(tmp_path, "--dram", "32MiB", environ=patient) as near,
        NodeChild(tmp_path, "--dram", "32MiB", environ=patient) as far,
        near.open() as reader,
        far.open() as writer,
    ):
        wait_until(lambda: len(reader.members) == len(writer.members) == 2, 60)
        value = bytes(100_000)
        keys = keys_that_are_looked_up_at(reader, writer, value)
        assert reader.get(keys[0]) == value  # they are connected
        reads = writer.node_stats().counters["reads_total"]
        far.pause()
        try:
            reader.get_many_into(keys, [bytearray(len(value)) for _ in keys], timeout_s=3)
        finally:
            far.resume()
        wait_until(lambda: writer.node_stats().counters["reads_total"] > reads, 30, "what was asked is done")
        wait_until(lambda: writer.node_stats().pinned_objects == 0, 30, "no pins")


def value_of(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except UnavailableError:  # it is being attached to again
        return None


LONG_S = 300.0  # a call that waited for its deadline would end the test's patience


def refusals(store: Store) -> dict[str, str]:
    """What calls say that need the node's answer."""
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("other", b"value", timeout_s=LONG_S),
        "put of many": lambda: store.put("large", bytes(4 << 20), tags=["by message"], timeout_s=LONG_S),
        "remove": lambda: store.remove("key", timeout_s=LONG_S),
        "statistics": lambda: store.node_stats(timeout_s=LONG_S),
        "listing": lambda: list(store.scan(timeout_s=LONG_S)),
    }
    said = {}
    for name, call in calls.items():
        with pytest.raises(UnavailableError) as raised:
            call()
        said[name] = str(raised.value)
    return said


def test_a_node_of_this_host_that_was_stopped_is_named_at_once_and_used_again(tmp_path: Path) -> None:
    """Programs waited for their deadline, since only time tells a node that stopped from a busy one."""
    with NodeChild(tmp_path, "--dram", "16MiB") as node, node.open() as store:
        store.put("key", b"value")
        node.pause()
        try:
            said = refusals(store)
        finally:
            node.resume()
        pid = node.process.pid
        advice = f"process {pid} on this host is stopped (state T); `kill -CONT {pid}` lets it go on"
        assert {name: text for name, text in said.items() if advice not in text} == {}
        store.put("other", b"value", timeout_s=LONG_S)  # at once
        assert store.get("other") == b"value"


def test_a_stopped_node_is_named_when_its_connection_is_lost_too(tmp_path: Path) -> None:
    with NodeChild(tmp_path, "--dram", "16MiB") as node:
        config = load_config({**node.settings(), "transfer": {"idle_probe_s": 0.1}}, environ={})
        with open_store(config) as store:
            store.put("key", b"value")
            node.pause()
            try:
                wait_until(lambda: store.error is not None, 60, "the connection counts as lost")
                said = refusals(store)
            finally:
                node.resume()
            assert {name: text for name, text in said.items() if "is stopped (state T)" not in text} == {}
            assert {name: text for name, text in said.items() if node.advert.endpoint not in text} == {}
            wait_until(lambda: value_of(store, "key") == b"value", 60, "it is used again")

from __future__ import annotations

import numpy as np
import pytest

from _engines import engine_pair, options, pattern, pieces
from kvferry.errors import StaleError
from kvferry.metrics import MetricRegistry
from kvferry.transfer import Engine, TransferMetrics


def values(registry: MetricRegistry, name: str) -> dict[str, float]:
    """Return the samples of one name from the exported page, by their labels."""
    lines = registry.export().decode().splitlines()
    return {
        line[len(name) : line.rindex(" ")]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(name + "{")
    }


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_exported_figures_are_those_of_a_known_workload(transport):
    with engine_pair(transport) as pair:
        metrics = TransferMetrics(pair.client)
        source, target = pattern(8192), np.zeros(8192, np.uint8)
        theirs = pair.server.register(source, name="m", access="rw")
        ours = pair.client.register(target, name="t", access="rw")
        pair.peer.refresh()
        plan = pair.client.prepare(pair.peer, pieces((ours.id, theirs.id, 0, 0, 8192)), "read")
        for _ in range(3):
            pair.client.execute(plan)
        back = pair.client.prepare(pair.peer, pieces((ours.id, theirs.id, 0, 0, 100)), "write")
        pair.client.execute(back)
        labels = f'{{peer="{pair.peer.endpoint}",transport="{transport}"'
        name = "kvferry_transfer_"
        registry = metrics.registry
        assert values(registry, name + "moved_bytes_total") == {
            labels.replace("{", '{op="read",') + "}": 3 * 8192,
            labels.replace("{", '{op="write",') + "}": 100,
        }
        assert values(registry, name + "transfers_total") == {labels + "}": 4}
        assert values(registry, name + "pieces_total") == {labels + "}": 4}
        assert values(registry, name + "latency_seconds_count") == {labels + "}": 4}
        buckets = values(registry, name + "latency_seconds_bucket")
        assert max(buckets.values()) == 4
        assert [*buckets.values()] == sorted(buckets.values())
        assert values(registry, name + "failed_pieces_total") == {}
        theirs.unregister()
        with pytest.raises(StaleError):
            pair.client.execute(plan).raise_if_failed()
        assert values(registry, name + "failed_pieces_total") == {
            labels.replace("{", '{code="stale",') + "}": 1
        }
        assert values(registry, name + "unsettled") == {f'{{peer="{pair.peer.endpoint}"}}': 0}


def test_two_connections_to_one_node_are_told_apart():
    with Engine(options("tcp")) as far, Engine(options("tcp")) as near:
        first, second = near.connect(far.endpoint), near.connect(far.endpoint)
        assert first.handle != second.handle
        assert len(values(TransferMetrics(near).registry, "kvferry_transfer_unsettled")) == 2


def test_files_and_copies_of_the_engine_itself_are_exported():
    with Engine(options("tcp")) as engine:
        registry = TransferMetrics(engine).registry
        assert values(registry, "kvferry_transfer_unsettled") == {}
        near, far = (engine.allocate(4096, name=name, access="rw") for name in ("near", "far"))
        plan = engine.prepare(engine.self_peer, pieces((near.id, far.id, 0, 0, 4096)), "write")
        engine.execute(plan).raise_if_failed()
        assert values(registry, "kvferry_transfer_transfers_total") == {'{peer="self",transport="local"}': 1}
        assert values(registry, "kvferry_transfer_unsettled") == {'{peer="self"}': 0}

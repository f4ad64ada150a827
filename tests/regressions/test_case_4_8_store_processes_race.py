"""Case 4.8: processes race on one key. The same bytes are fine for all; of different ones the first win."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.faults.store.history import Promise, check, read_history
from tests.faults.store.values import VARIANTS, variant_of

from kvferry.store import Store
from kvferry.testing.nodes import NodeChild

RACERS = 8


def keys(count: int) -> list[str]:
    """Small and large ones: sent along, and written in place."""
    return [f"raced/{number}/{100 if number % 2 else 40_000}" for number in range(count)]


def race(node: NodeChild, directory: Path, variants: list[int], names: list[str]) -> list[list[str]]:
    """Each process puts its variant of all keys, all at the same time; how the puts ended."""
    config = json.dumps(
        {"store": {"node": node.advert.endpoint}, "cluster": {"directory": node.cluster.directory}}
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.faults.store.client", config, str(directory / f"racer-{index}")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for index in range(len(variants))
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b'"ready"\n'
    ends = []
    for racer, variant in zip(racers, variants, strict=True):
        assert racer.stdin is not None
        racer.stdin.write(json.dumps(["each", "put", names, variant]).encode() + b"\n")
        racer.stdin.flush()
    for racer in racers:
        out, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        ends.append(json.loads(out))
    return ends


def one_winner(store: Store, names: list[str], ends: list[list[str]], variants: list[int]) -> None:
    for index, name in enumerate(names):
        of_key = [each[index].split()[0] for each in ends]
        assert of_key.count("created") == 1
        data = store.get(name)
        assert data is not None
        stored = variant_of(name, data)
        for end, variant in zip(of_key, variants, strict=True):
            assert end in (("created", "there") if variant == stored else ("conflict",))


def test_all_agree_on_the_winner(tmp_path: Path, extent) -> None:
    names = keys(extent.times(60, 1000))
    variants = [index % VARIANTS for index in range(RACERS)]
    with NodeChild(tmp_path, "--dram", "128MiB") as node, node.open() as store:
        one_winner(store, names, race(node, tmp_path, variants, names), variants)
        ops = [op for path in tmp_path.glob("racer-*") for op in read_history(path)]
        assert len(ops) == RACERS * len(names)
        assert check(ops, Promise(frozenset(), 10.0)) == []
        same = [f"same/{name}" for name in names]
        one_winner(store, same, race(node, tmp_path, [1] * RACERS, same), [1] * RACERS)

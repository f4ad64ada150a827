"""A store whose node seems to be on another host: bytes go over tcp, out of and into registered memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvferry.config import load_config
from kvferry.errors import ConflictError, OutOfRangeError, ResourceExhaustedError
from kvferry.store import Store, open_store
from kvferry.testing.nodes import NodeChild

MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeChild]:
    with NodeChild(tmp_path, "--dram", "32MiB") as node:
        yield node


@pytest.fixture
def remote(node: NodeChild) -> Iterator[Store]:
    values = {
        "store": {"node": node.advert.endpoint},
        "cluster": {"directory": node.cluster.directory},
        "transfer": {"transports": ["tcp"]},
    }
    with open_store(load_config(values, environ={})) as store:
        yield store


def test_memory_is_offered_again_under_the_same_number(remote: Store) -> None:
    """Each call registers its values anew: the node must not read by what it knew of the call before."""
    value = np.random.default_rng(1).integers(0, 256, 7 * MIB, dtype=np.uint8)
    for round_, size in enumerate((3 * MIB, 3 * MIB, 7 * MIB, MIB, 5 * MIB + 1)):
        part = value[round_ : round_ + size - 4]
        assert remote.put(f"value {round_}", part).created
        assert remote.get(f"value {round_}") == part.tobytes()
        remote.remove(f"value {round_}")


def test_one_value_without_room_is_no_error_of_the_others(remote: Store, node: NodeChild) -> None:
    """All but 3 MiB are being read. Both by messages and in place."""
    with node.open() as near:
        views = []
        for number in range(29):
            near.put(f"read {number}", bytes(MIB))
            views.append(near.view(f"read {number}"))
        sizes = [1, 5 * MIB, 20_000, 64 * MIB, 0, 100_000, 5 * MIB, 9000]
        right = [
            None,
            ResourceExhaustedError,
            None,
            OutOfRangeError,
            None,
            None,
            ResourceExhaustedError,
            None,
        ]
        for name, store in (("near", near), ("remote", remote)):
            keys = [f"{name} {number}" for number in range(len(sizes))]
            results = store.put_many(keys, [bytes(size) for size in sizes], timeout_s=10)
            assert [type(result.error) if result.error else None for result in results] == right
            assert near.exists_many(keys).tolist() == [error is None for error in right]
        for view in views:
            view.close()


def test_of_equal_keys_the_first_is_stored(remote: Store, node: NodeChild) -> None:
    """However far apart they are in one call, of which the node reads several parts at once."""
    with node.open() as near:
        for name, store in (("near", near), ("remote", remote)):
            values = [np.full(MIB, number, dtype=np.uint8) for number in range(6)]
            keys = [f"{name} {number}" for number in (0, 1, 2, 3, 4, 0)]
            results = store.put_many(keys, values, timeout_s=10)
            assert [result.created for result in results] == [True] * 5 + [False]
            assert isinstance(results[5].error, ConflictError)
            assert store.get(keys[0]) == values[0].tobytes()
            [same, once_more] = store.put_many([keys[1], keys[1]], [values[1]] * 2, timeout_s=10)
            assert same.error is None
            assert once_more.error is None
            store.remove_many(keys)

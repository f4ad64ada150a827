"""A store whose node seems to be on another host: bytes go over tcp, out of and into registered memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvferry.config import load_config
from kvferry.store import Store, open_store
from kvferry.testing.nodes import NodeChild

MIB = 1 << 20


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Store]:
    with NodeChild(tmp_path, "--dram", "32MiB") as node:
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

"""A store with a node of its own, small, for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvferry.config import Config, load_config
from kvferry.store import Store, open_embedded


def settings(**store: object) -> Config:
    """Return a configuration with these settings of the section `store`."""
    return load_config({"store": {"dram": 32 << 20, **store}}, environ={})


@pytest.fixture
def store() -> Iterator[Store]:
    with open_embedded(settings()) as opened:
        yield opened

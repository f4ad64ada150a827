from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from kvferry.config import load_config
from kvferry.store import Store, open_embedded
from unit.lmcache_connector import fake_lmcache

_namespaces = (f"test-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with its node, which all tests of this process share."""
    directory = tmp_path_factory.mktemp("cluster")
    directory.chmod(0o700)
    settings = {"cluster.directory": str(directory), "store.dram": "32MiB"}
    with open_embedded(load_config(settings, environ={})) as made:
        yield made


@pytest.fixture
def settings(store: Store) -> dict[str, Any]:
    """Settings of a plugin that uses that node, in a namespace of the test's."""
    return {"store.node": store.own_endpoint, "pool.namespace": next(_namespaces)}


@pytest.fixture
def lmcache() -> Iterator[None]:
    """Our plugins on a fake LMCache."""
    with fake_lmcache.installed():
        yield

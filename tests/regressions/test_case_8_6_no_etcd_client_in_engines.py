"""Case 8.6: the etcd client library breaks with the engine's protobuf. Engine processes load neither."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENTS = {"etcd3", "google.protobuf", "grpc"}
UNWANTED = {*CLIENTS, "kvferry.meta.etcd", "aiohttp"}


@pytest.mark.parametrize(
    "part", ["kvferry", "kvferry.transfer", "kvferry.handoff", "kvferry.layout", "kvferry.meta"]
)
def test_what_an_engine_loads_brings_no_etcd_client_and_no_protobuf(part):
    code = "\n".join(
        [
            "import os, sys",
            "before = dict(os.environ)",
            f"import {part}",
            f"print(sorted({UNWANTED!r} & set(sys.modules)), dict(os.environ) == before)",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[] True"


def test_a_store_on_etcd_needs_no_protobuf_and_no_variable():
    code = "\n".join(
        [
            "import os, sys",
            "before = dict(os.environ)",
            "from kvferry.config import ClusterOptions",
            "from kvferry.meta import open_store",
            "store = open_store(ClusterOptions(store='etcd://127.0.0.1:1'), 'a secret of the cluster')",
            "store.close()",
            f"print(sorted({CLIENTS!r} & set(sys.modules)), dict(os.environ) == before)",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[] True"

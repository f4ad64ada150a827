"""LMDeploy's pooled cache on our module `mooncake`: pool_cases.py, in LMDeploy's interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.lmdeploy.test_migration import run, with_drop_in
from kvferry.testing.nodes import NodeChild

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("pool_cases.py")


def test_lmdeploys_pool_connector_keeps_its_blocks_in_our_node(lmdeploy_python: Path, tmp_path: Path) -> None:
    cluster, file = tmp_path / "cluster", tmp_path / "mooncake.json"
    cluster.mkdir(mode=0o700)
    settings = {"metadata_server": "P2PHANDSHAKE", "master_server_address": "auto", "protocol": "tcp"}
    file.write_text(json.dumps({**settings, "global_segment_size": "16MB", "local_buffer_size": "16MB"}))
    where = {"KVFERRY_CLUSTER_DIRECTORY": str(cluster), "MOONCAKE_CONFIG_PATH": str(file)}
    with NodeChild(cluster, "--dram", "64MiB"):
        problems = run(lmdeploy_python, program=PROGRAM, PYTHONPATH=with_drop_in(), **where)
    assert [name for name, problem in problems.items() if problem] == [], problems
    assert len(problems) == 3

"""What the tools that run engines' own tests share."""

from __future__ import annotations

import os
import xml.etree.ElementTree as Tree
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.envs import ROOT
from tools.progress import end_supervised, run_logged, start_supervised

PLUGINS = ROOT / "tests" / "engines" / "upstream"
_NODE_S = 60.0
_WAIT = """
import sys, time
from kvferry.config import load_config
from kvferry.store import find_nodes
end = time.monotonic() + float(sys.argv[1])
while not find_nodes(load_config().cluster):
    assert time.monotonic() < end, "no node"
    time.sleep(0.1)
"""


@contextmanager
def node(python: Path, cluster: Path, log: Path) -> Iterator[dict[str, str]]:
    """A node of the store; yields the environment in which it is found."""
    environ = {**os.environ, "KVFERRY_CLUSTER_DIRECTORY": str(cluster), "KVFERRY_POOL_NODE": "attach"}
    kvferry = python.parent / "kvferry"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = start_supervised([kvferry, "node", "--dram", "256MiB"], env=environ, output=out)
    try:
        wait = [python, "-c", _WAIT, str(_NODE_S)]
        run_logged(wait, log, "upstream tests: starting a node", timeout_s=2 * _NODE_S, env=environ)
        yield environ
    finally:
        end_supervised(process)


def verdict(report: Path, not_ours: Container[str] = (), why: str = "") -> tuple[str, list[str]]:
    """Return how the tests fared, in words, and which failed; `not_ours` may, for the reason `why`."""
    cases = list(Tree.parse(report).iter("testcase"))
    skipped = [case for case in cases if case.find("skipped") is not None]
    failed = [
        str(case.get("name"))
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    wrong = [name for name in failed if name not in not_ours]
    lines = [f"{len(cases) - len(failed) - len(skipped)} passed, {len(failed)} failed"]
    lines += [f"{len(skipped)} skipped"] if skipped else []
    lines += [f"- {name}{'' if name in wrong else f' ({why})'}" for name in failed]
    return "\n".join(lines), wrong

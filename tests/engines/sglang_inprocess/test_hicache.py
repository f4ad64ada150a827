"""HiCache's third level on SGLang's own classes: two engines, one after the other, and a node that stays.

The engines are `hicache_cases.py`, run in SGLang's environment; each of its cases is a test here.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from engines.hosts import joined_hosts
from engines.sglang.environment import cpu_environment, sglang_python
from kvferry.testing.nodes import NodeChild

PROGRAM = Path(__file__).with_name("hicache_cases.py")
TIMEOUT_S = 200.0
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
CASES = [
    *(f"{kind} {layout}" for kind in ("full", "sliding", "draft") for layout in LAYOUTS),
    *(f"latent {layout}" for layout in LAYOUTS[:3]),
    "states page_first_direct",
    "by class",
    "by buffers",
    "shared host pool",
]
OTHERS = (
    "nothing_of_others",
    "failing_backend",
    "without_a_host_level",
    "without_a_host_level_for_latent_attention",
    "in_memory_of_a_device",
    "detach_and_attach",
    "clear",
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(500)]


def run(
    mode: str, directory: Path, *cases: str, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What each case of the program said, empty if it went well; `log`: the end of what else it said."""
    ours = {"KVFERRY_CLUSTER_DIRECTORY": str(directory), "KVFERRY_POOL_NODE": "attach", **(env or {})}
    with (directory / f"{mode}.log").open("w+") as log:
        done = subprocess.run(
            [*prefix, sglang_python(), PROGRAM, mode, *cases],
            env=cpu_environment(**ours),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        log.seek(0)
        said = log.read()[-4000:]
    found = {each["case"]: each["error"] for each in map(json.loads, done.stdout.splitlines())}
    return {**found, "log": said}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    sglang_python()
    directory = tmp_path_factory.mktemp("cluster")
    directory.chmod(0o700)
    with NodeChild(directory, "--dram", "128MiB"):
        saved = run("save", directory)
        loaded = run("load", directory)
    return {**saved, **loaded, "log": f"{saved['log']}\n{loaded['log']}"}


def check(results: dict[str, str], name: str) -> None:
    assert name in results, f"not run; the program said: {results['log']}"
    assert not results[name], f"{results[name]}\n{results['log']}"


@pytest.mark.parametrize("case", CASES)
def test_another_engine_finds_the_same_bytes(results: dict[str, str], case: str) -> None:
    check(results, f"save {case}")
    check(results, f"load {case}")


@pytest.mark.parametrize("case", OTHERS)
def test_other_cases(results: dict[str, str], case: str) -> None:
    check(results, case)


def test_an_engine_on_another_host_finds_the_same_bytes(tmp_path: Path) -> None:
    sglang_python()
    cases = ("full page_first", "sliding layer_first")
    with joined_hosts(tmp_path) as world:
        results: dict[str, str] = {}
        for mode, site in (("save", world.near), ("fetch", world.far)):
            directory = Path(site.settings["cluster.directory"])
            said = run(mode, directory, *cases, prefix=site.host.prefix, env=site.environment)
            results = {**results, **said, "log": f"{results.get('log', '')}\n{said['log']}"}
    for case in cases:
        check(results, f"save {case}")
        check(results, f"fetch {case}")

"""LMCache's own tools and server with KVFerry below, each in a process of its own, and one node for all."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tools.servers import Server, free_port

from kvferry.testing.nodes import NodeChild

TOOL_S = 240.0
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}


class LMCache:
    """LMCache's commands, told to use one node under a namespace of this test's."""

    def __init__(self, python: Path, node: NodeChild, namespace: str, folder: Path) -> None:
        self.python, self.node, self.folder = python, node, folder
        self.settings = {**flat(node.settings()), "pool.namespace": namespace}

    def l2(self, **settings: Any) -> dict[str, Any]:
        """What `--l2-adapter` takes."""
        params = {**self.settings, **settings}
        return {
            "type": "plugin",
            "module_path": "kvferry_lmcache",
            "class_name": "L2Adapter",
            "adapter_params": params,
        }

    def config(self, **extra: Any) -> Path:
        """A configuration file of an LMCache in an engine; JSON is YAML too."""
        plugin = "remote_storage_plugin.kvferry."
        names = {"module_path": "kvferry_lmcache", "class_name": "Adapter", **self.settings}
        content = {
            "chunk_size": 16,
            "local_cpu": False,
            "max_local_cpu_size": 0.1,
            "remote_storage_plugins": ["kvferry"],
            "remote_serde": "naive",
            "extra_config": {f"{plugin}{name}": value for name, value in names.items()},
        }
        content.update(extra)
        path = self.folder / "lmcache.yaml"
        path.write_text(json.dumps(content))
        return path

    def run(self, *words: object, config: Path | None = None) -> str:
        """Run the interpreter with these arguments; its output. AssertionError unless it ends with 0."""
        environ = {**os.environ, **QUIET, **({"LMCACHE_CONFIG_FILE": str(config)} if config else {})}
        command = [str(word) for word in (self.python, *words)]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=TOOL_S, check=False, cwd=self.folder
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def command(self, *words: object) -> str:
        """Run `lmcache WORDS`."""
        return self.run("-c", "import sys; from lmcache.cli.main import main; sys.exit(main())", *words)

    def server(self, name: str, adapter: Mapping[str, Any]) -> tuple[Server, int]:
        """An `lmcache server` with this L2, not started yet, and the port that engines talk to."""
        port = free_port()
        command = [
            str(self.python), "-c", "from lmcache.cli.main import main; main()", "server",
            "--host", "127.0.0.1", "--port", str(port), "--http-host", "127.0.0.1", "--http-port", "{port}",
            "--chunk-size", "64", "--l1-size-gb", "1", "--l1-init-size-gb", "1",
            "--eviction-policy", "LRU", "--supported-transfer-mode", "auto", "--disable-metrics",
            "--l2-adapter", json.dumps(adapter),
        ]  # fmt: skip
        log = self.folder / f"{name}.log"
        return Server(name, command, log, env=QUIET, health="/healthcheck", port=free_port()), port


def flat(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`{"store": {"node": ...}}` as `{"store.node": ...}`."""
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


@pytest.fixture(scope="session")
def lmcache_python() -> Path:
    """The interpreter with LMCache and KVFerry; skips the test when none is named."""
    named = os.environ.get("KVFERRY_LMCACHE_PYTHON")
    if not named:
        pytest.skip("KVFERRY_LMCACHE_PYTHON names no interpreter with LMCache; ./test sets it")
    return Path(named)


@pytest.fixture(scope="session")
def node(lmcache_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeChild]:
    """One node for all tests, which have a namespace each."""
    with NodeChild(tmp_path_factory.mktemp("cluster"), "--dram", "128MiB") as child:
        yield child


_namespaces = (f"test-{number}" for number in itertools.count())


@pytest.fixture
def lmcache(lmcache_python: Path, node: NodeChild, tmp_path: Path) -> LMCache:
    return LMCache(lmcache_python, node, next(_namespaces), tmp_path)

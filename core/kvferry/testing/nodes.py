"""Nodes of the pool in processes of their own, as users start them."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from kvferry.config import ClusterOptions, Config, load_config
from kvferry.config.sources import process_environment
from kvferry.errors import UnavailableError
from kvferry.store import Advert, Store, find_nodes, open_store
from kvferry.testing.waiting import stop_process, wait_until

_START_S = 60.0
_STOP_S = 60.0
_COMMAND = "import sys; from kvferry.cli import main; sys.exit(main(sys.argv[1:]))"


class NodeChild:
    """One `kvferry node` on this machine, in a cluster whose directory is `directory`. A context manager that
    kills.
    """

    def __init__(
        self,
        directory: Path,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        name: str = "default",
        prefix: Sequence[str] = (),
    ) -> None:
        """Start it and wait until it can be found. Raises `UnavailableError` with its output if it ends
        first. `prefix`: a command that becomes the one behind it, e.g. in a network namespace.
        """
        self.prefix = tuple(prefix)
        self.cluster = ClusterOptions(directory=str(directory), name=name)
        known = {advert.node_id for advert in find_nodes(self.cluster)}
        self._log = (directory / f"node-{len(list(directory.glob('node-*.log')))}.log").open("wb")
        self._given = dict(environ or {})
        self._environ = {
            **process_environment(),
            "KVFERRY_CLUSTER_DIRECTORY": str(directory),
            "KVFERRY_CLUSTER_NAME": name,
            **self._given,
        }
        self.process = subprocess.Popen(
            [*self.prefix, sys.executable, "-c", _COMMAND, "node", *flags],
            env=self._environ, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

        def started() -> bool:
            return self.process.poll() is not None or self._find(known) is not None

        wait_until(started, _START_S)
        advert = self._find(known)
        if advert is None:
            self.kill()
            raise UnavailableError(f"the node did not start:\n{self.log()}")
        self.advert = advert

    def _find(self, known: set[str]) -> Advert | None:
        fresh = [advert for advert in find_nodes(self.cluster) if advert.node_id not in known]
        mine = [advert for advert in fresh if advert.pid == self.process.pid]
        return mine[0] if mine else None

    def config(self, **store: Any) -> Config:
        """Return the configuration of a program that uses this node, with these settings of the section
        `store`, and with what the node itself was told (e.g. a cluster secret).
        """
        return load_config(self.settings(**store), environ=self._given)

    def settings(self, **store: Any) -> dict[str, Any]:
        """Return what `config` sets, by section: for programs in processes of their own."""
        cluster = {"directory": self.cluster.directory, "name": self.cluster.name}
        return {"store": {"node": self.advert.endpoint, **store}, "cluster": cluster}

    def open(self, **store: Any) -> Store:
        """Return a store attached to it."""
        return open_store(self.config(**store))

    def command(self, *words: str, expect: int | None = 0) -> subprocess.CompletedProcess[bytes]:
        """Run `kvferry WORDS` as a user of this machine would. AssertionError if it ends with another exit
        code than expected; None: any will do.
        """
        done = subprocess.run(
            [*self.prefix, sys.executable, "-c", _COMMAND, *words],
            env=self._environ,
            capture_output=True,
            timeout=_STOP_S,
            check=False,
        )
        if expect is not None and done.returncode != expect:
            raise AssertionError(
                f"kvferry {' '.join(words)} ended with {done.returncode}: {done.stderr.decode()}"
            )
        return done

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that it runs in, as programs of its user have it."""
        return self._environ

    def log(self) -> str:
        """What it has printed."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def pause(self) -> None:
        """Stop it where it is (SIGSTOP)."""
        stop_process(self.process)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a chance to say so (SIGKILL); idempotent."""
        self.process.kill()
        self.process.wait(_STOP_S)
        self._log.close()

    def stop(self) -> int:
        """Ask it to leave (SIGTERM); return its exit code."""
        self.process.terminate()
        code = self.process.wait(_STOP_S)
        self._log.close()
        return code

    def __enter__(self) -> NodeChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _knows(store: Store, count: int) -> bool:
    return len(store.members) == count


def start_nodes(directory: Path, count: int, flags: Sequence[str] = ("--dram", "64MiB")) -> list[NodeChild]:
    """Start nodes that know each other, and wait until all do; none is left behind if one fails."""
    with ExitStack() as undo:
        nodes = [undo.enter_context(NodeChild(directory, *flags)) for _ in range(count)]
        for node in nodes:
            with node.open() as store:
                wait_until(functools.partial(_knows, store, count), _START_S, "all nodes known to each other")
        undo.pop_all()
    return nodes

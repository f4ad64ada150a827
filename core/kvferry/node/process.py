"""The life of a node: start, membership, drain, end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from kvferry import _native, meta
from kvferry._native import Endpoint, NodeStats
from kvferry.config import Config, approximate_size, format_size
from kvferry.errors import KVFerryError
from kvferry.node.admin import AdminServer, listen, read_token
from kvferry.node.metrics import NodeMetrics
from kvferry.store import Advert, Advertisement, node_options

logger = logging.getLogger("kvferry.node")

_LOOK_S = 0.5  # between looks for signals

DRAINING = "draining"  # the role of a member that takes nothing new


class NodeProcess:
    """One node with all that belongs to it. A context manager; `close` leaves the cluster. Thread-safe."""

    def __init__(self, config: Config) -> None:
        """Start, join the cluster, listen.

        Raises `ConfigError`, `ResourceExhaustedError` (memory, ports), `UnavailableError` (the SSD directory,
        the metadata store).
        """
        self.config = config
        token = read_token(config.admin)  # what is wrong with it is said before anything begins
        self._draining = False
        self._closing = ExitStack()
        with ExitStack() as undo:  # what has been started ends if the rest cannot be
            # Before anything else: a node that others have seen must not go again because of a port.
            listener = undo.enter_context(listen(config.admin))
            self._native = _native.Node(node_options(config))
            undo.callback(self._native.close)
            store = meta.open_store(config.cluster, config.transfer.cluster_secret)
            undo.callback(store.close)
            self._membership = meta.Membership(
                store,
                cluster=config.cluster.name,
                secret=config.transfer.cluster_secret,
                member=self._describe(),
                settings={"replicas": config.store.replicas},
                lease_s=config.cluster.lease_s,
            )
            undo.callback(self._membership.leave)
            self._native.on_suspect(self._membership.suspect)
            self._native.on_heard(self._membership.trust)
            self._membership.on_change(self._take_view)
            self._take_view(self._membership.join())
            self.metrics = NodeMetrics(self._native, self._membership)
            self.admin = AdminServer(self, token, listener)
            undo.callback(self.admin.close)
            advert = Advert(
                node_id=self._native.node_id,
                endpoint=str(self._native.endpoint),
                admin=self.admin.url,
                pid=os.getpid(),
            )
            undo.enter_context(Advertisement(config.cluster, advert))
            self._closing = undo.pop_all()
        self._compare_with_disk()
        logger.info(
            "node %s of cluster %s listens on %s, offers %s; admin at %s",
            self.node_id, config.cluster.name, self.endpoint, self._offer(), self.admin.url,
        )  # fmt: skip

    @property
    def node_id(self) -> str:
        """128 random bits, new at each start, as 32 hex digits."""
        return self._native.node_id

    @property
    def endpoint(self) -> Endpoint:
        """Where clients and other nodes reach it."""
        return self._native.endpoint

    @property
    def view(self) -> meta.View:
        """The members of the cluster."""
        return self._membership.members()

    @property
    def draining(self) -> bool:
        """Whether it is leaving: it takes nothing new."""
        return self._draining

    def stats(self) -> NodeStats:
        """What it holds and has done."""
        return self._native.stats()

    def problems(self) -> list[str]:
        """Why it is not healthy, in sentences; none if it is."""
        reasons = list(self._native.stats().degraded)
        error = self._native.error()
        if error is not None:
            reasons.append(str(error))
        away_s = self._membership.store_away_s
        if away_s:
            reasons.append(
                f"the metadata store has not answered for {away_s:.0f} s; the last members stay in force"
            )
        return reasons

    def drain(self, timeout_s: float) -> int:
        """Move what it holds to other members; return how many objects had to be left behind."""
        self._draining = True
        self._membership.update(roles=(DRAINING,))
        logger.info("draining: what is held goes to other members, for %g s at most", timeout_s)
        left = self._native.drain(timeout_s)
        logger.info("drained, %d objects left behind", left)
        return left

    def close(self) -> None:
        """Leave the cluster and end; idempotent."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _describe(self) -> meta.Member:
        return meta.Member(
            node_id=self._native.node_id,
            endpoint=str(self._native.endpoint),
            host_id=self.config.cluster.host or _machine_id(),
            dram_bytes=self.config.store.dram,
            ssd_bytes=self.config.store.ssd,
        )

    def _take_view(self, view: meta.View) -> None:
        members = []
        for member in view.members:
            try:
                endpoint = Endpoint(member.endpoint)
            except KVFerryError as error:
                logger.warning("member %s cannot be reached: %s", member.node_id, error)
                continue
            # One that is being drained stays until it is gone: what it still holds must not seem absent.
            members.append(_native.Member(member.node_id, endpoint, member.host_id, member.dram_bytes))
        self._native.set_members(view.number, members)

    def _compare_with_disk(self) -> None:
        store = self.config.store
        if not store.ssd:
            return
        try:
            room = shutil.disk_usage(store.ssd_directory).free + self._native.stats().ssd_used
        except OSError:  # the tier itself says what is wrong with its directory
            return
        if room < store.ssd:
            logger.warning(
                "store.ssd is %s, but %s has room for about %s: make room there, or offer less",
                format_size(store.ssd), store.ssd_directory, approximate_size(room),
            )  # fmt: skip

    def _offer(self) -> str:
        store = self.config.store
        offer = f"{format_size(store.dram)} of memory"
        return f"{offer} and {format_size(store.ssd)} on {store.ssd_directory}" if store.ssd else offer


def _machine_id() -> str:
    """Return what is the same for all nodes of this machine: replicas go to different ones."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def run(config: Config, *, drain_s: float) -> int:
    """Run a node until SIGTERM or SIGINT; then drain it for `drain_s` seconds (0: not at all). Return an exit
    code.

    A second signal ends the draining.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    with NodeProcess(config) as node:
        while not stop.wait(_LOOK_S):  # a bounded wait, so that signals are handled on every platform
            pass
        if drain_s > 0 and len(node.view.members) > 1:
            _drain(node, drain_s)
    return 0


def _drain(node: NodeProcess, drain_s: float) -> None:
    """Drain in a thread of its own: the one that signals interrupt must not wait in native code."""
    with ThreadPoolExecutor(1) as threads:
        try:
            drained = threads.submit(node.drain, drain_s)
            while not wait([drained], _LOOK_S).done:
                pass
        except KeyboardInterrupt:
            logger.warning("asked twice: leaving without draining to the end")
            node.close()  # which ends the draining
            return
        drained.result()

"""How programs find the node of their machine: a file for each node that runs, in the user's run-time
directory.

A node holds a lock on its file as long as it lives, so that a file left behind by a killed one is not
believed. The directory is the user's alone.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

import msgspec

from kvferry.config import ClusterOptions, make_private, runtime_directory
from kvferry.errors import UnavailableError

_MAX_BYTES = 4096


class Advert(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it announces itself on its machine."""

    node_id: str
    endpoint: str  # of its transfer engine
    admin: str  # base URL of its HTTP interface
    pid: int


class Advertisement:
    """A node's file, held as long as the node runs. A context manager."""

    def __init__(self, cluster: ClusterOptions, advert: Advert) -> None:
        """Publish. Raises `AccessDeniedError` or `UnavailableError` if the directory cannot be used."""
        self._path = _directory(cluster) / f"{advert.node_id}.json"
        fresh = self._path.with_suffix(".new")  # not found by anybody until it is locked
        try:
            self._fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._fd, msgspec.json.encode(advert))
            fresh.rename(self._path)
        except OSError as error:
            raise UnavailableError(f"cannot write {fresh}: {error.strerror}") from error

    def close(self) -> None:
        """Withdraw; idempotent."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Advertisement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def find_nodes(cluster: ClusterOptions) -> list[Advert]:
    """Return the living nodes of this user, machine and cluster; files of dead ones are removed."""
    found = []
    for path in sorted(_directory(cluster).glob("*.json")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # it has just left
        try:
            if _is_held(fd):
                found.append(msgspec.json.decode(os.read(fd, _MAX_BYTES), type=Advert))
            else:
                path.unlink(missing_ok=True)
        except msgspec.DecodeError:
            continue  # it is just being written
        finally:
            os.close(fd)
    return found


def _is_held(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _directory(cluster: ClusterOptions) -> Path:
    path = (Path(cluster.directory) if cluster.directory else runtime_directory()) / f"nodes-{cluster.name}"
    make_private(path)
    return path

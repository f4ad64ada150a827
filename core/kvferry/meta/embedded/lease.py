"""Leases of processes on one machine: a file that its owner keeps locked.

The kernel drops the lock when the process dies, however it dies, so that its keys are gone at once. A process
that is stopped, or whose child kept the file open, still holds it; for those the file tells the time (of
the monotonic clock, which all processes of a machine share) by which the owner had to show up.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
import time
from pathlib import Path

from kvferry.errors import UnavailableError

_DEADLINE = struct.Struct("<d")


class EmbeddedLease:
    """A lease of ours. Made while the directory is held, so that nobody finds its file without an owner."""

    def __init__(self, folder: Path, ttl_s: float) -> None:
        self._id = secrets.token_hex(8)
        self._ttl_s = ttl_s
        self._path = folder / self._id
        self._guard = threading.Lock()
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._extend()
        except OSError as error:
            raise UnavailableError(f"cannot make a lease in {folder}: {error}") from error

    @property
    def id(self) -> str:
        """Its identity in the store."""
        return self._id

    @property
    def ttl_s(self) -> float:
        """Seconds from one `keep_alive` to its end."""
        return self._ttl_s

    def keep_alive(self) -> bool:
        """Start its time afresh; False if it has ended."""
        with self._guard:
            if self._descriptor >= 0 and is_over(self._path):
                self._let_go()
            if self._descriptor >= 0:
                self._extend()
            return self._descriptor >= 0

    def revoke(self) -> None:
        """End it by letting go of its lock; whoever looks next removes its keys."""
        with self._guard:
            self._let_go()

    @property
    def ended(self) -> bool:
        """Whether we know that it ended."""
        return self._descriptor < 0

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _extend(self) -> None:
        os.pwrite(self._descriptor, _DEADLINE.pack(time.monotonic() + self._ttl_s), 0)


def is_over(path: Path) -> bool:
    """Say whether the lease of this file has ended: no owner, or none that showed up in time.

    Raises UnavailableError if that cannot be found out, as when this process has too many files open.
    """
    try:
        with path.open("rb") as file:
            deadline = file.read(_DEADLINE.size)
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:  # somebody holds it
        return len(deadline) != _DEADLINE.size or _DEADLINE.unpack(deadline)[0] < time.monotonic()
    except OSError as error:
        raise UnavailableError(f"cannot look at the lease {path}: {error}") from error
    return True

"""The directory itself: who may use it, its lock, and its revision.

    DIR/lock        flock for every change; its first 8 bytes are the revision (little-endian)
    DIR/keys/=KEY   one file per key, "/" written as "+": "REVISION LEASE\\n", then the value
    DIR/leases/ID   one file per lease, locked by its owner (see lease.py)

Files of `keys` appear by rename, so that nobody sees half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kvferry.config import make_private
from kvferry.errors import KVFerryError, UnavailableError

LOCK_TIMEOUT_S = 2.0
_LOCK_PAUSE_S = 0.002


class Directory:
    """A checked directory with its lock. Thread-safe: each use opens the lock file anew.

    Comes back by itself when somebody deletes it while we run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys = path / "keys"
        self.leases = path / "leases"
        self._lock = path / "lock"
        self._make()

    def revision(self) -> int:
        """Return the number of the last change, without a lock; -1 if the directory is gone.

        Raises UnavailableError.
        """
        try:
            with self._lock.open("rb") as file:
                return int.from_bytes(file.read(8), "little")
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise UnavailableError(f"the metadata store in {self.path} failed: {error}") from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Hold off changes. Raises UnavailableError."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def changing(self) -> Iterator[int]:
        """Hold the directory alone and yield the revision of this change. Raises UnavailableError.

        The revision counts first: a process that dies in between causes a look for nothing, never a change
        that nobody looks for.
        """
        with self._locked(fcntl.LOCK_EX) as descriptor:
            revision = int.from_bytes(os.pread(descriptor, 8, 0), "little") + 1
            os.pwrite(descriptor, revision.to_bytes(8, "little"), 0)
            yield revision

    def _make(self) -> None:
        for path in (self.path, self.keys, self.leases):
            make_private(path)

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[int]:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        descriptor = self._open()
        try:
            while not self._try_lock(descriptor, how):
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"the metadata store in {self.path} is locked for more than {LOCK_TIMEOUT_S:g} s; "
                        "is a process of ours stopped?"
                    )
                time.sleep(_LOCK_PAUSE_S)
                os.close(descriptor)
                descriptor = self._open()
            yield descriptor
        except KVFerryError:
            raise  # some of them are OSError, too
        except OSError as error:
            raise UnavailableError(f"the metadata store in {self.path} failed: {error}") from error
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        self._make()
        try:
            return os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UnavailableError(f"the metadata store in {self.path} failed: {error}") from error

    def _try_lock(self, descriptor: int, how: int) -> bool:
        """Lock it, and check that it is still the file of that name: another one locks nothing."""
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(descriptor), self._lock.stat())
        except (BlockingIOError, FileNotFoundError):
            return False

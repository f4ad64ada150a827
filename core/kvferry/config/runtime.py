"""The directory for what lives as long as our processes: sockets, locks, the embedded metadata store."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from kvferry.config.sources import process_environment
from kvferry.errors import AccessDeniedError, UnavailableError


def runtime_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of this user's KVFerry processes on this machine, made private.

    `kvferry` in `$XDG_RUNTIME_DIR`, or in `/run` for root, else `/tmp/kvferry-UID`. Raises as `make_private`.
    """
    environ = process_environment() if environ is None else environ
    user = os.geteuid()
    given = environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/"):
        path = Path(given, "kvferry")
    elif user == 0 and os.access("/run", os.W_OK):
        path = Path("/run/kvferry")
    else:
        path = Path(f"/tmp/kvferry-{user}")  # noqa: S108  (checked below)
    make_private(path)
    return path


def make_private(path: Path) -> None:
    """Make `path`, if need be, and check that nobody but us can use it.

    Raises AccessDeniedError if it is somebody else's, a link, no directory, or open to others;
    UnavailableError if it cannot be made.
    """
    try:
        for missing in reversed([each for each in path.parents if not each.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)  # ours too: the next one may have to be private itself
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except FileExistsError:
        raise AccessDeniedError(f"{path} is not a directory; remove it") from None
    except OSError as error:
        raise UnavailableError(f"cannot make the directory {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise AccessDeniedError(f"{path} is not a directory; remove it")
    if found.st_uid != os.geteuid():
        raise AccessDeniedError(
            f"{path} belongs to user {found.st_uid}, and we are user {os.geteuid()}; choose another"
        )
    if found.st_mode & (stat.S_IWOTH | stat.S_ISVTX):  # such as /tmp: closing it would shut out all others
        raise AccessDeniedError(
            f"{path} is shared with other users; choose a folder of your own, e.g. {path}/kvferry"
        )
    if found.st_mode & 0o077:
        raise AccessDeniedError(
            f"{path} can be used by others (mode {found.st_mode & 0o777:o}); do: chmod 700 {path}"
        )

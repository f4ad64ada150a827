"""The cache folder outside the clone: entries named by what defines them, built under a lock."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.progress import ToolError, say

_MARKER = ".kvferry-complete"
_LOCK_TIMEOUT_S = 5 * 3600.0  # the other run gives up before, or its lock ends with it
_UNUSED_AFTER_S = 14 * 86400.0


def cache_root() -> Path:
    """KVFERRY_CACHE, else $XDG_CACHE_HOME/kvferry, else ~/.cache/kvferry; made when absent."""
    named = os.environ.get("KVFERRY_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = (Path(named) if named else Path(base) / "kvferry").expanduser().resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise ToolError(
            f"the cache folder {root} cannot be used: {error.strerror}; set KVFERRY_CACHE to a folder that "
            "can be written"
        ) from error
    return root


def digest(*parts: str | bytes | Path) -> str:
    """12 hex digits over the parts, each length-prefixed; a Path stands for its file's contents."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            data = part.read_bytes()
        else:
            data = part if isinstance(part, bytes) else part.encode()
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()[:12]


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock `name` (between processes); says so when it has to wait for another run."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    with (cache_root() / f"{name}.lock").open("w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ToolError(
                        f"{name}: another run has held the lock for {_LOCK_TIMEOUT_S:.0f} s"
                    ) from None
                if not told:
                    say(f"waiting for another run that is making '{name}'")
                    told = True
                time.sleep(0.5)
        yield


def ensure(name: str, key: str, build: Callable[[Path], None], *, in_place: bool = False) -> Path:
    """The cache entry `name`-`key`, built by `build(folder)` if it is not there yet.

    `build` fills an empty temporary folder that is then renamed, or, with `in_place` (virtual environments
    hold their own path), the final folder, which counts only once its marker exists. An interrupted build
    leaves nothing that a later run would take for complete.
    """
    final = cache_root() / f"{name}-{key}"
    marker = final / _MARKER
    if marker.exists():
        os.utime(marker)
        return final
    with locked(f"{name}-{key}"):
        if marker.exists():
            return final
        work = final if in_place else final.with_name(final.name + ".partial")
        for leftover in (work, final):
            shutil.rmtree(leftover, ignore_errors=True)
        work.mkdir(parents=True)
        build(work)
        (work / _MARKER).touch()
        if not in_place:
            work.rename(final)
    _drop_unused(name, keep=final)
    return final


def _drop_unused(name: str, keep: Path) -> None:
    """Remove earlier entries of the same name, and what is left of unfinished ones, unused for two weeks."""
    for entry in cache_root().glob(f"{name}-" + "[0-9a-f]" * 12 + "*"):
        if entry == keep or not entry.is_dir():
            continue
        marker = entry / _MARKER
        with contextlib.suppress(FileNotFoundError):
            used = (marker if marker.exists() else entry).stat().st_mtime
            if time.time() - used > _UNUSED_AFTER_S:
                shutil.rmtree(entry, ignore_errors=True)

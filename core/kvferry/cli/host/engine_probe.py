"""The native engine tried for real: one process reads another's memory by each transport."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping

from kvferry.cli.host.children import Child
from kvferry.cli.host.model import Check, Level
from kvferry.config import TransferOptions, load_config
from kvferry.errors import ConfigError, KVFerryError

_COMMAND = (sys.executable, "-m", "kvferry.cli.host.engine_peer")
_TIMEOUT_S = 20.0


def probe_moves() -> dict[str, str]:
    """Return for each transport `ok` or why it failed; `engine` has the reason if nothing could run."""
    try:
        with Child(_COMMAND, "owner") as owner, Child(_COMMAND, "reader") as reader:
            address = owner.line(_TIMEOUT_S)
            if not address:
                return {"engine": "an engine could not be started"}
            reader.tell(address)
            words = reader.line(_TIMEOUT_S).split("\t")
    except OSError as error:
        return {"engine": f"the probe could not run: {error.strerror or error}"}
    if len(words) < 4:
        return {"engine": "the reading process ended early"}
    return dict(zip(words[::2], words[1::2], strict=True))


def probe_files() -> str:
    """Return how the engine moves the bytes of files here, in its own words; else why that is not known."""
    try:
        config = load_config().transfer
    except ConfigError:
        config = TransferOptions()  # another check reports it
    try:
        from kvferry.transfer import Engine

        with tempfile.NamedTemporaryFile(prefix="kvferry-doctor-") as file:
            file.write(b"x")
            file.flush()
            with Engine(TransferOptions(io_uring=config.io_uring)) as engine:
                return engine.open_file(file.name).note.rpartition("; by ")[2]
    except (ImportError, KVFerryError, OSError) as error:
        return f"not tried: {error}"


def check_moves(results: Mapping[str, str]) -> Check:
    """Report what the engine could move. Without tcp the main job cannot run; without shm it is slower."""
    name, details = "native engine", dict(results)
    if "engine" in results:
        fix = "python -c 'from kvferry.transfer import Engine; Engine()'   (shows the error)"
        return Check(name, Level.ERROR, results["engine"], fix, details)
    good = [transport for transport, result in results.items() if result == "ok"]
    bad = "; ".join(f"{transport}: {result}" for transport, result in results.items() if result != "ok")
    if "tcp" not in good:
        return Check(name, Level.ERROR, bad, "see the checks of the transports", details)
    if bad:
        words = f"1 MiB moved by {', '.join(good)}, but not by {bad}"
        return Check(name, Level.WARNING, words, "see the checks of the transports", details)
    return Check(name, Level.OK, f"1 MiB moved between two processes by {' and '.join(good)}", "", details)

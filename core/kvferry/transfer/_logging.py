"""Native log lines into Python's logging.

Native threads only append to a bounded queue: none ever waits for the interpreter lock. One daemon thread per
process takes the lines from there. It starts with the first engine and ends at interpreter exit.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading

from kvferry import _native

LOGGER = logging.getLogger("kvferry.transfer")
_CAPACITY_LINES = 4096
_FLUSH_MARK = 0  # no native line has this level
_LEVEL_REFRESH_S = 1.0  # how soon a changed level reaches the native code


class _LogPump:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self._queue = _native.LogQueue(_CAPACITY_LINES)
        self._stopping = False
        self._flushes: dict[str, threading.Event] = {}
        self._thread = threading.Thread(target=self._run, name="kvferry-log", daemon=True)

    def start(self) -> None:
        self._queue.install()
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Deliver what is queued, then end the thread; idempotent."""
        self._stopping = True
        self._queue.close()
        if self.pid == os.getpid() and self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all lines of before this call were delivered; false after `timeout_s`."""
        delivered = threading.Event()
        mark = str(id(delivered))
        self._flushes[mark] = delivered
        self._queue.push(_FLUSH_MARK, mark)
        return delivered.wait(timeout_s)

    def _run(self) -> None:
        while True:
            apply_level()
            stopping = self._stopping
            for level, line in self._queue.drain(_LEVEL_REFRESH_S):
                if level == _FLUSH_MARK:
                    self._flushes.pop(line).set()
                else:
                    LOGGER.log(level, "%s", line)
            if stopping:
                return


_lock = threading.Lock()
_pump: _LogPump | None = None


def apply_level() -> None:
    """Let native code drop what the logger `kvferry.transfer` would drop."""
    _native.set_log_level(max(logging.DEBUG, min(LOGGER.getEffectiveLevel(), logging.ERROR)))


def flush(timeout_s: float = 5.0) -> bool:
    """Wait until the native lines logged so far were delivered; false after `timeout_s`."""
    pump = _pump
    return pump is None or pump.flush(timeout_s)


def start() -> None:
    """Start the pump if this process has none yet (a forked child has none). Thread-safe."""
    global _pump  # noqa: PLW0603  (native logging is one per process)
    apply_level()
    with _lock:
        if _pump is None or _pump.pid != os.getpid():
            _pump = _LogPump()
            _pump.start()

"""How much processor time a connector takes inside an engine's process: its hooks and its threads."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TASKS = Path("/proc/self/task")


class ConnectorMeter:
    """Of all instances of a connector's class, from its making on. Reading the clock counts as theirs."""

    def __init__(self, kind: type, *, thread_prefix: str) -> None:
        """`thread_prefix`: how the names of the connector's threads begin, Python's and the kernel's."""
        self._prefix = thread_prefix
        self._hooks_s = 0.0
        for name, hook in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                setattr(kind, name, self._timed(hook))

    def seconds(self) -> float:
        """Processor time until now, of hooks and living threads."""
        return self._hooks_s + self._threads_s()

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return hook(*args, **kwargs)
            finally:
                self._hooks_s += time.thread_time() - started

        return timed

    def _threads_s(self) -> float:
        ours = {str(thread.native_id) for thread in threading.enumerate() if self._is_ours(thread.name)}
        total = 0
        for task in os.listdir(TASKS):
            if task in ours or self._is_ours((TASKS / task / "comm").read_text()):
                total += int((TASKS / task / "schedstat").read_text().split()[0])
        return total / 1e9

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self._prefix)

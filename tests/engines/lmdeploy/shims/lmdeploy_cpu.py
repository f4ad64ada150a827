"""`python -m kvferry_lmdeploy` on a CPU, for tests: the same command behind cpu_device."""

from __future__ import annotations

import multiprocessing.managers as managers
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import cpu_device  # noqa: F401  (before all of LMDeploy; also in the processes that it spawns)

from kvferry_lmdeploy.__main__ import main

# LMDeploy's server looks for its engine process's port once a second, and leaves the manager that they share
# as soon as it is there: on a slow machine the engine is then still inside, and dies of it. Linger a little.
_leave = managers.BaseManager.__exit__


def _linger(self: managers.BaseManager, *arguments: Any) -> Any:
    time.sleep(3)
    return _leave(self, *arguments)


managers.BaseManager.__exit__ = _linger  # type: ignore[method-assign]

if __name__ == "__main__":
    main()

"""What the packaging tests share: commands run in a clean environment, and a look into what was built."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


def run(command: Sequence[object], cwd: Path, timeout_s: float = 60.0, *, with_stderr: bool = True) -> str:
    """Run a command and return what it printed; fail the test with its output if it fails."""
    tools = Path(sys.executable).parent
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("KVFERRY_", "PYTHON"))
    }
    environment |= {"PATH": f"{tools}:{environment.get('PATH', '')}", "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if with_stderr else subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, (
        f"{command} ended with {done.returncode}:\n{done.stdout[-8000:]}{(done.stderr or '')[-8000:]}"
    )
    return done.stdout


class Built(NamedTuple):
    """What a release would publish."""

    sdist: Path
    wheel: Path

    def wheel_files(self) -> dict[str, bytes]:
        """Return the content of the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def sdist_names(self) -> list[str]:
        """Return the names in the source distribution, without its top folder."""
        with tarfile.open(self.sdist) as archive:
            return [member.name.split("/", 1)[1] for member in archive.getmembers() if "/" in member.name]

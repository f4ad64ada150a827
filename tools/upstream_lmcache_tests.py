"""Run LMCache's own tests of its storages with KVFerry's plugins in place of LMCache's: how do they fare?

python3 -m tools.upstream_lmcache_tests    # PyPI must be reachable: LMCache's source archive has the tests

Nothing of the archive is kept but in the cache. Not part of ./test: it needs the archive, and takes minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tools import cache
from tools.envs import ensure_overlay, ensure_upstream_env, python_of
from tools.progress import ToolError, fail, run_logged, say
from tools.upstream import PLUGINS, node, verdict

VERSION = "0.5.6"
FILES = (
    "tests/v1/distributed/test_mock_l2_adapter.py",
    "tests/v1/distributed/test_fs_l2_adapter_delete.py",
    "tests/v1/distributed/test_fault_inject_l2_adapter.py",
    "tests/v1/storage_backend/test_fs_connector.py",
)
# What these assert is not the interface: the mock's slowness, and that it has a capacity of its own.
NOT_OURS = (
    "test_store_completion_is_delayed_by_bandwidth",
    "test_get_usage_empty_adapter_is_zero",
    "test_get_usage_increases_after_store",
    "test_get_usage_decreases_after_delete",
)
_BUILD_NEEDS = ("setuptools>=77,<81", "wheel", "setuptools-scm", "ninja", "grpcio-tools==1.78.0")


def _log() -> Path:
    return cache.cache_root() / "logs" / "upstream-lmcache.log"


def _fetch(env: Path, folder: Path) -> None:
    """Unpack the tests, and only them: the package beside them would hide the installed one."""
    with tempfile.TemporaryDirectory(prefix="kvferry-upstream-") as scratch:
        command = [
            python_of(env), "-m", "pip", "download", "--no-deps", "--no-build-isolation",
            "--no-binary", "lmcache", "--disable-pip-version-check", "--dest", scratch, f"lmcache=={VERSION}",
        ]  # fmt: skip
        environ = {**os.environ, "NO_GPU_EXT": "1", "NO_CUDA_EXT": "1"}
        run_logged(command, _log(), f"upstream tests: fetching LMCache {VERSION}'s sources", env=environ)
        with tarfile.open(next(Path(scratch).glob("lmcache-*.tar.gz"))) as packed:
            members = [each for each in packed if each.name.partition("/")[2].startswith("tests/")]
            packed.extractall(folder, members, filter="data")


def _run(python: Path, source: Path, environ: dict[str, str], report: Path) -> None:
    environ = {**environ, "LMCACHE_TRACK_USAGE": "false", "PYTHONPATH": f"{PLUGINS}{os.pathsep}{source}"}
    command: list[str | os.PathLike[str]] = [
        python, "-m", "pytest", "-q", "--tb=short", "-c", os.devnull, f"--rootdir={source}", "--timeout=120",
        "-p", "use_kvferry_lmcache", "-p", "no:cacheprovider", f"--junit-xml={report}", *FILES,
    ]  # fmt: skip
    say("upstream tests: running them with KVFerry's plugins")
    with _log().open("ab") as log:
        subprocess.run(command, cwd=source, env=environ, stdout=log, stderr=log, timeout=1200, check=False)


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        base = ensure_overlay("lmcache")
        env = ensure_upstream_env("lmcache", _BUILD_NEEDS)
        source = cache.ensure("upstream-lmcache", cache.digest(VERSION), lambda folder: _fetch(env, folder))
        with tempfile.TemporaryDirectory(prefix="kvferry-upstream-") as scratch:
            report = Path(scratch, "report.xml")
            with node(python_of(base), Path(scratch), _log()) as environ:
                _run(python_of(env), source / f"lmcache-{VERSION}", environ, report)
            if not report.exists():
                raise ToolError(f"the tests did not run; see {_log()}")
            text, wrong = verdict(report, NOT_OURS, "of the mock itself")
    except ToolError as error:
        return fail(error)
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run SGLang's own tests of its servers on a CPU, with KVFerry's backends in them: how do they fare?

python3 -m tools.upstream_sglang_tests                   # those that SGLang's package brings along
python3 -m tools.upstream_sglang_tests --source FOLDER   # and those of its repository, checked out there

For the second: git clone --depth 1 --branch v0.5.23 https://github.com/sgl-project/sglang FOLDER. Not part of
./test: each class of tests starts servers of its own, and takes a minute or more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools import cache
from tools.envs import ROOT, SGLANG, ensure_overlay, ensure_upstream_env, python_of
from tools.models import ensure_model
from tools.progress import ToolError, end_supervised, fail, say, start_supervised
from tools.upstream import PLUGINS, node, verdict

SHIMS = ROOT / "tests" / "engines" / "sglang" / "shims"
PACKAGED = ("test_disaggregation_peer_liveness_abort.py", "test_disaggregation_chunked_prefill_abort.py")
_HICACHE = "test/registered/hicache"
REGISTERED = (
    f"{_HICACHE}/test_hicache_storage_file_backend.py::TestHiCacheStoragePageFirstLayout",
    f"{_HICACHE}/test_hicache_storage_file_backend.py::TestHiCacheStoragePageFirstDirectIO",
    f"{_HICACHE}/test_hicache_storage_runtime_attach_detach.py",
)
_LIMIT_S = 3000.0


def _log() -> Path:
    return cache.cache_root() / "logs" / "upstream-sglang.log"


def _tests(python: Path, source: Path | None) -> list[str]:
    """Those to run, as pytest takes them. Raises ToolError."""
    find = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", find], capture_output=True, text=True, timeout=60, check=True)
    package = Path(found.stdout.strip())
    tests = [str(PLUGINS / "sglang_parity.py")]
    tests += [str(package / "test" / "manual" / "disaggregation" / name) for name in PACKAGED]
    return tests if source is None else tests + registered(source)


def registered(source: Path) -> list[str]:
    """Those of the repository. Raises ToolError: the folder is no checkout of it."""
    missing = [name for name in REGISTERED if not (source / name.partition("::")[0]).exists()]
    if missing:
        raise ToolError(f"{source} is no checkout of SGLang {SGLANG}: it has no {missing[0]}")
    return [str(source / name) for name in REGISTERED]


def _run(python: Path, environ: dict[str, str], report: Path, tests: Sequence[str]) -> None:
    environ = {
        **environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(map(str, (PLUGINS, PLUGINS / "sglang", SHIMS))),
        "PYTHONWARNINGS": "ignore",
        "KVFERRY_UPSTREAM_MODEL": str(ensure_model("tiny")),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command: list[str | os.PathLike[str]] = [
        python, "-m", "pytest", "-q", "--tb=short", "-c", os.devnull, f"--rootdir={report.parent}",
        "--noconftest", "-p", "use_kvferry_sglang", "-p", "no:cacheprovider", f"--junit-xml={report}", *tests,
    ]  # fmt: skip
    say("upstream tests: running them with KVFerry's backends")
    with _log().open("ab") as log:
        process = start_supervised(command, env=environ, cwd=report.parent, output=log)
    try:
        process.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ToolError(f"the tests did not end within {_LIMIT_S:g} s; see {_log()}") from None
    finally:
        end_supervised(process)  # with all servers that they left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", type=Path, help="a checkout of SGLang 0.5.23")
    options = parser.parse_args()
    try:
        base = ensure_overlay("sglang-peers")
        env = ensure_upstream_env("sglang-peers", ())
        tests = _tests(python_of(env), options.source and options.source.resolve())
        with tempfile.TemporaryDirectory(prefix="kvferry-upstream-") as scratch:
            report = Path(scratch, "report.xml")
            with node(python_of(base), Path(scratch), _log()) as environ:
                _run(python_of(env), environ, report, tests)
            if not report.exists():
                raise ToolError(f"the tests did not run; see {_log()}")
            text, wrong = verdict(report)
    except ToolError as error:
        return fail(error)
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

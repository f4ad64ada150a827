"""Run vLLM's own connector unit tests with KVFerryConnector instead of its default one: how do they fare?

python3 -m tools.upstream_vllm_tests    # PyPI must be reachable: vLLM's source archive (45 MB) has the tests

Nothing of the archive is kept but in the cache. Not part of ./test: it needs the archive, and takes minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as Tree
from collections import Counter
from pathlib import Path

from tools import cache
from tools.envs import ROOT, ensure_upstream_env, python_of
from tools.models import ensure_model
from tools.progress import ToolError, fail, run_logged, say

VERSION = "0.32.0"
PLUGIN = ROOT / "tests" / "engines" / "upstream"
UNIT = "tests/v1/kv_connector/unit"
FILES = (
    "test_remote_prefill_lifecycle",
    "test_remote_decode_lifecycle",
    "test_kv_load_failure_recovery",
    "test_invalid_blocks_correctness",
    "test_cache_pollution_prevention",
    "test_error_propagation",
)
_BUILD_NEEDS = ("setuptools>=77,<81", "wheel", "setuptools-scm", "vcs-versioning", "setuptools-rust", "cmake")
_SHOWN = ("tests/", "examples/disaggregated/", "pyproject.toml")
_MAKE_MODEL = """
import sys
from transformers import AutoTokenizer, OPTConfig
config = OPTConfig()
config.architectures = ["OPTForCausalLM"]
config.save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
"""


def _log() -> Path:
    return cache.cache_root() / "logs" / "upstream-vllm.log"


def _fetch(env: Path, folder: Path) -> None:
    """Unpack the tests, and only them: the package beside them would hide the installed one."""
    with tempfile.TemporaryDirectory(prefix="kvferry-upstream-") as scratch:
        command = [
            python_of(env), "-m", "pip", "download", "--no-deps", "--no-build-isolation",
            "--no-binary", "vllm", "--disable-pip-version-check", "--dest", scratch, f"vllm=={VERSION}",
        ]  # fmt: skip
        environ = {**os.environ, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VERSION}
        run_logged(command, _log(), f"upstream tests: fetching vLLM {VERSION}'s sources (45 MB)", env=environ)
        archive = next(Path(scratch).glob("vllm-*.tar.gz"))
        with tarfile.open(archive) as packed:
            members = [each for each in packed if each.name.partition("/")[2].startswith(_SHOWN)]
            packed.extractall(folder, members, filter="data")


def _make_model(python: Path, home: Path) -> None:
    """The one model that the tests name, as far as they look at it: a configuration and a tokenizer."""
    snapshot = home / "hub" / "models--facebook--opt-125m" / "snapshots" / "x"
    snapshot.mkdir(parents=True, exist_ok=True)
    (snapshot.parents[1] / "refs").mkdir(exist_ok=True)
    (snapshot.parents[1] / "refs" / "main").write_text("x")
    command = [python, "-c", _MAKE_MODEL, ensure_model("tiny"), snapshot]
    run_logged(command, _log(), "upstream tests: making the model's configuration")


def _run(python: Path, source: Path, home: Path, report: Path) -> None:
    environ = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(source)]),
    }
    command: list[str | os.PathLike[str]] = [
        python, "-m", "pytest", "-q", "--tb=short", "-c", os.devnull, f"--rootdir={source}",
        f"--confcutdir={UNIT}", "-p", "use_kvferry", "-p", "no:cacheprovider", f"--junit-xml={report}",
        *[f"{UNIT}/{name}.py" for name in FILES],
    ]  # fmt: skip
    say("upstream tests: running them with KVFerryConnector")
    with _log().open("ab") as log:
        subprocess.run(command, cwd=source, env=environ, stdout=log, stderr=log, timeout=1800, check=False)


def _table(report: Path) -> tuple[str, list[str]]:
    """Return the table of how each file fares, and what failed."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in FILES}
    failed: list[str] = []
    for case in Tree.parse(report).iter("testcase"):
        name = str(case.get("classname")).rsplit(".", 1)[-1]
        bad = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        counts[name]["failed" if bad else "skipped" if skipped else "passed"] += 1
        if bad:
            failed.append(str(case.get("name")))
    lines = ["| file | passed | failed | skipped |", "| --- | --: | --: | --: |"]
    lines += [
        f"| `{name}` | {one['passed']} | {one['failed']} | {one['skipped']} |" for name, one in counts.items()
    ]
    lines += ["", *[f"- `{name}` failed" for name in failed]]
    return "\n".join(lines), failed


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        env = ensure_upstream_env("vllm", _BUILD_NEEDS)
        source = cache.ensure("upstream-vllm", cache.digest(VERSION), lambda folder: _fetch(env, folder))
        with tempfile.TemporaryDirectory(prefix="kvferry-upstream-") as scratch:
            report, home = Path(scratch, "report.xml"), Path(scratch, "home")
            _make_model(python_of(env), home)
            _run(python_of(env), source / f"vllm-{VERSION}", home, report)
            if not report.exists():
                raise ToolError(f"the tests did not run; see {_log()}")
            table, failed = _table(report)
    except ToolError as error:
        return fail(error)
    print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

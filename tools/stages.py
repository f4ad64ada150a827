"""What ./test runs: each stage as a list of commands, made when its turn comes."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.envs import ROOT, ensure_env, ensure_overlay, ensure_wheel, python_of
from tools.models import ensure_model

NATIVE = ROOT / "native"
_PYTHON_FOLDERS = ("core", "connectors", "tests", "tools", "benchmarks", "examples")
_TEXT = (*_PYTHON_FOLDERS, "native", "docs", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md",
         "CHANGELOG.md", "demo", "test")  # fmt: skip


@dataclass(frozen=True)
class Command:
    """One program run of a stage; `needed` ones end the stage when they fail."""

    label: str
    argv: Sequence[object]
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    timeout_s: float = 900.0
    needed: bool = False


@dataclass(frozen=True)
class Context:
    """What the command line asked for."""

    fast: bool
    pytest_args: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """A named part of the suite."""

    name: str
    what: str
    commands: Callable[[Context], list[Command]]
    fast: bool = False


def _present(names: Sequence[str]) -> list[str]:
    return [name for name in names if (ROOT / name).exists()]


def _dev_path() -> dict[str, str]:
    """The development tools (cmake, ninja, clang-format, ...) come first in PATH."""
    return {"PATH": f"{ensure_env('dev') / 'bin'}:{os.environ.get('PATH', '')}"}


def _lint(_context: Context) -> list[Command]:
    tools = ensure_env("dev") / "bin"
    found = (file for suffix in ("*.h", "*.cc") for file in NATIVE.rglob(suffix))
    cpp = sorted(str(file) for file in found if "third_party" not in file.parts)
    python = _present(_PYTHON_FOLDERS)
    return [
        Command("ruff check", [tools / "ruff", "check", *python]),
        Command("ruff format --check", [tools / "ruff", "format", "--check", *python]),
        Command("clang-format", [tools / "clang-format", "--dry-run", "-Werror", "--style=file", *cpp]),
        Command("mypy --strict", [tools / "mypy"]),
        Command("mypy --strict tools", [tools / "mypy", "--strict", "-p", "tools"]),
        Command("codespell", [tools / "codespell", *_present(_TEXT)]),
    ]


def _native(preset: str) -> Callable[[Context], list[Command]]:
    def commands(_context: Context) -> list[Command]:
        env = _dev_path()
        # ThreadSanitizer of gcc 12 cannot place its shadow memory under wide address randomisation.
        fixed = ["setarch", platform.machine(), "-R"] if preset == "tsan" and shutil.which("setarch") else []
        ctest = [*fixed, "ctest", "--preset", preset, "--no-tests=error", "-j", "1"]
        return [
            Command(f"cmake --preset {preset}", ["cmake", "--preset", preset], env, NATIVE, needed=True),
            Command(f"build {preset}", ["cmake", "--build", "--preset", preset], env, NATIVE, needed=True),
            Command(f"ctest {preset}", ctest, env, NATIVE),
        ]

    return commands


def _fuzz(_context: Context) -> list[Command]:
    return [
        Command(
            "fuzz each decoder for a short time", ["bash", NATIVE / "fuzz" / "run.sh"], _dev_path(), NATIVE
        )
    ]


def _pytest(context: Context, label: str, *arguments: str, env: dict[str, str], timeout_s: float) -> Command:
    python = python_of(ensure_overlay("dev"))
    argv = [python, "-m", "pytest", "-p", "no:cacheprovider", *arguments, *context.pytest_args]
    return Command(label, argv, {**_dev_path(), **env}, timeout_s=timeout_s)


def _python(context: Context) -> list[Command]:
    chosen = "not engine and not slow" if context.fast else "not engine"
    wheel = {"KVFERRY_TEST_WHEEL": str(ensure_wheel())}
    ignored = ["--ignore=tests/packaging", "--ignore=tests/engines"]
    return [_pytest(context, f"pytest ({chosen})", "-m", chosen, *ignored, env=wheel, timeout_s=1500.0)]


def _packaging(context: Context) -> list[Command]:
    wheel = {"KVFERRY_TEST_WHEEL": str(ensure_wheel())}
    return [_pytest(context, "pytest tests/packaging", "tests/packaging", env=wheel, timeout_s=1200.0)]


def _engine_folders(*prefixes: str) -> list[str]:
    """Of tests/engines, the folders whose names begin so: each belongs to one stage (test_stages.py)."""
    found = (folder for prefix in prefixes for folder in ROOT.glob(f"tests/engines/{prefix}*/"))
    return sorted(str(folder.relative_to(ROOT)) for folder in found)


def _engines(context: Context) -> list[Command]:
    env = {"KVFERRY_VLLM_PYTHON": str(python_of(ensure_overlay("vllm")))}
    env["KVFERRY_PEERS_PYTHON"] = str(python_of(ensure_env("peers")))
    for name in ("tiny", "sliding", "smollm2", "audio", "mla", "mamba", "delta", "images", "eagle3"):
        env[f"KVFERRY_MODEL_{name.upper()}"] = str(ensure_model(name))
    arguments = [*_engine_folders("vllm"), "--durations=15"]
    return [_pytest(context, "pytest vLLM", *arguments, env=env, timeout_s=2400.0)]


def _sglang(context: Context) -> list[Command]:
    env = {"KVFERRY_SGLANG_PYTHON": str(python_of(ensure_overlay("sglang")))}
    env["KVFERRY_SGLANG_PEERS_PYTHON"] = str(python_of(ensure_env("sglang-peers")))
    arguments = [*_engine_folders("sglang"), "--durations=15"]
    return [_pytest(context, "pytest SGLang", *arguments, env=env, timeout_s=1800.0)]


def _lmcache(context: Context) -> list[Command]:
    env = {"KVFERRY_LMCACHE_PYTHON": str(python_of(ensure_overlay("lmcache")))}
    env["KVFERRY_MODEL_TINY"] = str(ensure_model("tiny"))
    return [_pytest(context, "pytest LMCache", *_engine_folders("lmcache"), env=env, timeout_s=900.0)]


def _lmdeploy(context: Context) -> list[Command]:
    env = {"KVFERRY_LMDEPLOY_PYTHON": str(python_of(ensure_overlay("lmdeploy")))}
    env["KVFERRY_MODEL_TINY"] = str(ensure_model("tiny"))
    arguments = [*_engine_folders("lmdeploy"), "--durations=5"]
    return [_pytest(context, "pytest LMDeploy", *arguments, env=env, timeout_s=1200.0)]


def _setup(_context: Context) -> list[Command]:
    return [Command("kvferry --version", [ensure_overlay("dev") / "bin" / "kvferry", "--version"])]


ALL: tuple[Stage, ...] = (
    Stage("setup", "environments and KVFerry's wheel", _setup, fast=True),
    Stage("lint", "ruff, clang-format, mypy, codespell", _lint, fast=True),
    Stage("native", "C++ tests, warnings as errors", _native("release"), fast=True),
    Stage("python", "Python tests", _python, fast=True),
    Stage("packaging", "wheel, house limits", _packaging),
    Stage("asan", "C++ tests under AddressSanitizer and UBSan", _native("asan")),
    Stage("tsan", "C++ tests under ThreadSanitizer", _native("tsan")),
    Stage("fuzz", "fuzzing of the wire decoders", _fuzz),
    Stage("engines", "real vLLM on a CPU", _engines),
    Stage("sglang", "real SGLang on a CPU", _sglang),
    Stage("lmcache", "KVFerry behind the real LMCache", _lmcache),
    Stage("lmdeploy", "real LMDeploy on a CPU", _lmdeploy),
)


def names() -> list[str]:
    """The names of all stages, in order."""
    return [stage.name for stage in ALL]

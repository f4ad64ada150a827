"""Knowledge flows downward: who may import or include whom (ARCHITECTURE.md, "Layers")."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core/kvferry"

LEAVES = {"errors", "versions", "config", "metrics"}
# part of kvferry -> parts it may import, besides itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "versions": {"errors"},
    "config": {"errors", "versions"},
    "metrics": {"errors", "config"},
    "layout": LEAVES,
    "transfer": LEAVES | {"_native"},
    "index": LEAVES | {"_native"},
    "meta": LEAVES,
    "handoff": LEAVES | {"transfer", "layout"},
    "scheduling": LEAVES,
    "router": LEAVES | {"scheduling", "handoff", "transfer", "index"},
    "store": LEAVES | {"transfer", "_native"},
    "pool": LEAVES | {"handoff", "layout", "index", "store"},
    "worker": LEAVES | {"transfer", "layout", "handoff", "pool"},
    "planner": {"handoff", "pool", "worker"},
    "encoder": LEAVES | {"store", "index", "pool"},
    "node": LEAVES | {"store", "meta", "_native"},
    "cli": LEAVES | {"router", "node", "store", "transfer", "_native"},
    "testing": LEAVES | {"transfer", "layout", "meta", "handoff", "scheduling", "router", "store", "node"},
    "": set(),  # kvferry/__init__.py
}
# Modules that none of our packages imports, not even inside a function, except where named.
ENGINES = {"torch", "vllm", "sglang", "lmdeploy", "lmcache"}
CONNECTORS_OWN = {
    "kvferry_vllm",
    "kvferry_sglang",
    "kvferry_lmcache",
    "kvferry_lmdeploy",
    "kvferry_mooncake",
    "mooncake",
}
FORBIDDEN_IN_CORE = ENGINES | CONNECTORS_OWN | {"requests", "etcd3", "pyverbs"}
# A connector translates: sockets, processes, memory and HTTP belong below it.
FORBIDDEN_IN_CONNECTORS = {
    "socket",
    "subprocess",
    "multiprocessing",
    "mmap",
    "ctypes",
    "http",
    "urllib",
    "aiohttp",
    "selectors",
}
PARTS_CLOSED_TO_CONNECTORS = {"router", "cli", "_native"}
MAX_CONNECTOR_LINES = 1200  # of a folder: a part of an engine that is connected by itself has its own
MAX_ENCODER_CONNECTOR_LINES = 300  # an engine's connector for encoder outputs is one of its own: ec_*.py


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted module name) of every import, those inside functions and by name included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((node.lineno, word.value) for word in node.args if _is_module_name(word))
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            names = [node.module] if node.module != "kvferry" else [f"kvferry.{a.name}" for a in node.names]
            yield from ((node.lineno, name) for name in names)


def _is_module_name(word: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(word, ast.Constant) and isinstance(word.value, str)


def part_of(module: str) -> str:
    """Return the part of kvferry that a module belongs to: `kvferry.config.units` -> `config`."""
    return module.split(".")[1] if "." in module else ""


def part_of_file(path: Path) -> str:
    """Return the part of kvferry that a file belongs to."""
    first = path.relative_to(CORE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_core_imports_point_downward(path: Path) -> None:
    part = part_of_file(path)
    assert part in ALLOWED, f"{part} is not in ARCHITECTURE.md's layers: add it here and there"
    for line, module in imports(path):
        root = module.split(".")[0]
        assert root not in FORBIDDEN_IN_CORE, f"{path}:{line}: {part} imports {module}"
        if root == "kvferry":
            wanted = part_of(module)
            assert wanted in ALLOWED[part] | {part, "__version__"}, (
                f"{path}:{line}: {part} may not import {module}"
            )


CONNECTORS = sorted(path for path in (ROOT / "connectors").glob("*/kvferry_*") if path.is_dir())


@pytest.mark.parametrize("connector", CONNECTORS, ids=lambda path: path.name)
def test_connectors_only_translate(connector: Path) -> None:
    lines: Counter[Path] = Counter()
    encoder_lines = 0
    for path in sorted(connector.rglob("*.py")):
        count = path.read_text(encoding="utf-8").count("\n")
        if path.name.startswith("ec_"):
            encoder_lines += count
        else:
            lines[path.parent] += count
        for line, module in imports(path):
            root = module.split(".")[0]
            where = f"{path}:{line}: {module}"
            assert root not in FORBIDDEN_IN_CONNECTORS, where
            assert (
                root not in ENGINES or root == connector.name.removeprefix("kvferry_") or root == "torch"
            ), where
            assert not root.startswith("kvferry_") or root == connector.name, where
            assert root != "kvferry" or part_of(module) not in PARTS_CLOSED_TO_CONNECTORS, where
    assert max(lines.values()) <= MAX_CONNECTOR_LINES, f"{connector.name} has {lines} lines"
    assert encoder_lines <= MAX_ENCODER_CONNECTOR_LINES, f"ec_*.py of {connector.name}: {encoder_lines} lines"


# layer -> layers whose headers it may include, besides its own
NATIVE_ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "io": {"base"},
    "topology": {"base"},
    "device": {"base"},
    "memory": {"base", "device"},
    "wire": {"base"},
    "transport": {"base", "io", "topology", "device", "memory", "wire"},
    "engine": {"base", "io", "topology", "device", "memory", "wire", "transport"},
    "index": {"base"},
    "store": {"base", "io", "index", "memory", "wire", "transport", "engine"},
}
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# Public headers by the lowest layer that may include them.
ENGINE_HEADERS = {"kvferry/engine.h"}


def includes(path: Path) -> list[str]:
    """Return what a C++ file includes from our own tree (and from Python)."""
    return [
        name
        for bracket, name in _INCLUDE.findall(path.read_text(encoding="utf-8"))
        if bracket == '"' or "ython" in name or "pybind" in name
    ]


def native_files() -> list[Path]:
    """Return the C++ files of the layers."""
    return sorted(path for path in (ROOT / "native/src").rglob("*") if path.suffix in (".h", ".cc"))


@pytest.mark.parametrize("path", native_files(), ids=lambda path: str(path.relative_to(ROOT / "native/src")))
def test_native_includes_point_downward(path: Path) -> None:
    relative = path.relative_to(ROOT / "native/src")
    layer = relative.parts[0]
    assert layer in NATIVE_ALLOWED
    for name in includes(path):
        assert not name.startswith(("pybind11", "Python.h")), f"{path}: {name} belongs into native/bindings"
        assert name not in ENGINE_HEADERS or layer in ("engine", "store"), (
            f"{path}: {layer} may not include {name}"
        )
        wanted = name.split("/")[0]
        if wanted in NATIVE_ALLOWED:
            assert wanted in NATIVE_ALLOWED[layer] | {layer}, f"{path}: {layer} may not include {name}"
        if (
            layer == "transport"
            and len(relative.parts) > 2
            and name.startswith("transport/")
            and "/" in name[10:]
        ):
            assert name.split("/")[1] == relative.parts[1], (
                f"{path}: transports do not know each other ({name})"
            )


def test_public_headers_include_only_public_and_standard_ones() -> None:
    for path in sorted((ROOT / "native/include").rglob("*.h")):
        text = path.read_text(encoding="utf-8")
        assert "#pragma once" in text, path
        for bracket, name in _INCLUDE.findall(text):
            assert bracket == "<" or name.startswith("kvferry/"), f"{path} includes {name}"

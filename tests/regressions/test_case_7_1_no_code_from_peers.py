"""Case 7.1: pickle over the network. Nothing shipped makes code or objects out of bytes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("core", "connectors")
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {"recv_pyobj", "send_pyobj", "loads_pickle"}
UNSAFE_LOADS = {("torch", "load"), ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"),
                ("numpy", "load"), ("np", "load")}  # fmt: skip


def findings(source: str) -> list[str]:
    """Each forbidden import or call of a source text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            found += _call(node.func)
    return found


def _call(function: ast.expr) -> list[str]:
    if isinstance(function, ast.Name) and function.id in CALLS:
        return [function.id]
    if isinstance(function, ast.Attribute):
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        if function.attr in METHODS or (owner, function.attr) in UNSAFE_LOADS:
            return [f"{owner}.{function.attr}"]
    return []


def test_shipped_code_has_nothing_that_executes_or_unpickles_bytes():
    files = [path for folder in SHIPPED for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 20
    wrong = {str(path.relative_to(ROOT)): found for path in files if (found := findings(path.read_text()))}
    assert wrong == {}


@pytest.mark.parametrize(
    "bad",
    ["import pickle", "from pickle import loads", "import marshal as m", "eval(x)", "exec(x)",
     "s.recv_pyobj()", "torch.load(f)", "yaml.load(f)", "np.load(f)"],
)  # fmt: skip
def test_the_gate_sees(bad):
    assert findings(bad)


@pytest.mark.parametrize(
    "good", ["import json", "msgspec.json.decode(x)", "yaml.safe_load(f)", "re.compile(x)"]
)
def test_the_gate_lets_pass(good):
    assert findings(good) == []

"""Nothing that turns bytes from elsewhere into code, and nothing that hides failures."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "connectors", "tools", "benchmarks", "examples")

# (file, construct): pickles, to hash as vLLM does, and never reads one back.
ALLOWED = {("benchmarks/index_bench/vllm_scheme.py", "pickle")}
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    ("torch", "load"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("os", "system"),
}
KEYWORDS = {("allow_pickle", True), ("shell", True), ("weights_only", False)}


def offences(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for each forbidden construct in Python code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (
                (node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in MODULES
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield node.lineno, str(node.module)
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _call_offences(node))
        elif isinstance(node, ast.ExceptHandler) and _swallows(node):
            yield node.lineno, "an except clause that swallows every error"


def _call_offences(call: ast.Call) -> Iterator[str]:
    function = call.func
    if isinstance(function, ast.Name) and function.id in BUILTINS:
        yield f"{function.id}()"
    if isinstance(function, ast.Attribute) and (ast.unparse(function.value), function.attr) in ATTRIBUTES:
        yield f"{ast.unparse(function)}()"
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Constant) and (keyword.arg, keyword.value.value) in KEYWORDS:
            yield f"{keyword.arg}={keyword.value.value}"


def _swallows(handler: ast.ExceptHandler) -> bool:
    broad = handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )
    return broad and all(isinstance(statement, (ast.Pass, ast.Continue)) for statement in handler.body)


def python_files() -> list[Path]:
    """Return the Python files that users or developers run."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_forbidden_construct(path: Path) -> None:
    allowed = {what for name, what in ALLOWED if name == str(path.relative_to(ROOT))}
    found = [f"{path}:{line}: {what}" for line, what in offences(path.read_text()) if what not in allowed]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from marshal import loads",
        "eval(x)",
        "exec(x)",
        "torch.load(x)",
        "yaml.load(x)",
        "numpy.load(x, allow_pickle=True)",
        "subprocess.run(x, shell=True)",
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept:\n    pass",
    ],
)
def test_the_gate_sees_each_construct(text: str) -> None:
    assert list(offences(text))


@pytest.mark.parametrize("text", ["model.eval()", "re.compile('x')", "yaml.safe_load(x)", "json.loads(x)"])
def test_the_gate_lets_harmless_look_alikes_pass(text: str) -> None:
    assert not list(offences(text))


_CPP = re.compile(
    r"\b(system|popen|strcpy|strcat|sprintf|gets|alloca|rand)\s*\(|\bcatch\s*\(\s*\.\.\.\s*\)\s*\{\s*\}"
)
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def test_no_forbidden_function_in_native_code() -> None:
    found = []
    for path in sorted((ROOT / "native").rglob("*")):
        if path.suffix in (".h", ".cc"):
            code = _COMMENT.sub("", path.read_text(encoding="utf-8"))
            found += [f"{path}: {match[0]}" for match in _CPP.finditer(code)]
    assert not found, "\n".join(found)


def test_no_unfinished_work_is_left() -> None:
    word = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = []
    for folder in (*FOLDERS, "native", "docs", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            ours = path != Path(__file__) and "third_party" not in path.parts
            if ours and path.suffix in (".py", ".h", ".cc", ".md", ".txt", ".sh"):
                lines = path.read_text(encoding="utf-8").splitlines()
                found += [f"{path}:{number}" for number, line in enumerate(lines, 1) if word.search(line)]
    assert not found, "\n".join(found)

"""The limits of size and shape that our code keeps, measured.

    python tests/packaging/house_limits.py   # prints offenders as file:line: reason; exit code 1 if any

Files: at most 600 lines (tests 800), as a rule 400. Functions: at most 70 lines without comments and blank
lines (90 % of all at most 30), cyclomatic complexity 15 (a flat switch counts once), nesting 3 (branches,
loops and try; `with` opens no branch). No 12 equal lines of code in two files. The environment is read in
`kvferry.config` only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import lizard

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".pyi", ".h", ".cc"}
SKIPPED = {"build", "dist", "__pycache__", "node_modules", "third_party"}

MAX_FILE_LINES = 600
MAX_TEST_FILE_LINES = 800
USUAL_FILE_LINES = 400
MAX_SHARE_OF_LONG_FILES = 0.05
MAX_FUNCTION_LINES = 70
P90_FUNCTION_LINES = 30
MAX_COMPLEXITY = 15
MAX_NESTING = 3
DUPLICATE_LINES = 12


class Offence(NamedTuple):
    """One place that breaks a limit."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


class Source(NamedTuple):
    """One file of ours."""

    path: str  # relative to the root of the repository
    text: str

    @property
    def is_test(self) -> bool:
        """Whether test limits apply."""
        return "tests" in Path(self.path).parts

    @property
    def is_shipped(self) -> bool:
        """Whether it becomes part of the wheel."""
        return self.path.startswith(("core/", "connectors/", "native/")) and not self.is_test

    @property
    def is_python(self) -> bool:
        """Whether it is Python."""
        return self.path.endswith(".py")


def sources(root: Path = ROOT) -> list[Source]:
    """Return every source file of the repository, generated ones left out."""
    found = []
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = any(part in SKIPPED or part.startswith(".") for part in relative.parts)
        if path.suffix in SUFFIXES and not hidden and path.name != "_native.pyi":
            found.append(Source(str(relative), path.read_text(encoding="utf-8")))
    return found


def check_all(files: Iterable[Source]) -> list[Offence]:
    """Return every offence, by file."""
    files = list(files)
    found = [
        *file_lengths(files),
        *functions(files),
        *duplicates(files),
        *environment_access(files),
    ]
    return sorted(found)


def file_lengths(files: list[Source]) -> Iterator[Offence]:
    """Yield files that are too long, and the long ones if there are too many of them."""
    long = []
    for source in files:
        lines = source.text.count("\n")
        limit = MAX_TEST_FILE_LINES if source.is_test else MAX_FILE_LINES
        if lines > limit:
            yield Offence(source.path, 1, f"{lines} lines, limit {limit}")
        elif lines > USUAL_FILE_LINES and not source.is_test:
            long.append(
                Offence(
                    source.path, 1, f"{lines} lines; more than {USUAL_FILE_LINES} must stay the exception"
                )
            )
    if len(long) > MAX_SHARE_OF_LONG_FILES * max(len(files), 20):
        yield from long


def functions(files: list[Source]) -> Iterator[Offence]:
    """Yield functions that are too long, too complex or nested too deep."""
    lengths = []
    analyser = lizard.FileAnalyzer(lizard.get_extensions(["modified"]))
    for source in files:
        for function in analyser.analyze_source_code(source.path, source.text).function_list:
            lengths.append(function.nloc)
            where = (source.path, function.start_line)
            if function.nloc > MAX_FUNCTION_LINES:
                yield Offence(*where, f"{function.name}: {function.nloc} lines, limit {MAX_FUNCTION_LINES}")
            if function.cyclomatic_complexity > MAX_COMPLEXITY:
                yield Offence(
                    *where,
                    f"{function.name}: complexity {function.cyclomatic_complexity}, limit {MAX_COMPLEXITY}",
                )
        yield from python_nesting(source) if source.is_python else cpp_nesting(source)
    lengths.sort()
    if lengths and lengths[int(len(lengths) * 0.9)] > P90_FUNCTION_LINES:
        p90 = lengths[int(len(lengths) * 0.9)]
        yield Offence(
            "all files", 1, f"a tenth of the functions has {p90} lines or more, limit {P90_FUNCTION_LINES}"
        )


_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def python_nesting(source: Source) -> Iterator[Offence]:
    """Yield statements nested deeper than the limit, counted from their function."""
    pending: list[tuple[ast.AST, int]] = [(ast.parse(source.text), 0)]
    while pending:
        node, depth = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _SCOPES):
                pending.append((child, 0))
                continue
            is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
            deeper = depth + (isinstance(child, _BLOCKS) and not is_elif)
            if deeper > max(MAX_NESTING, depth):
                line = getattr(child, "lineno", 1)
                yield Offence(source.path, line, f"nested {deeper} deep, limit {MAX_NESTING}")
            pending.append((child, deeper))


_CPP_NOISE = re.compile(
    r"^[ \t]*#(?:\\\n|[^\n])*"  # preprocessor
    r"|//[^\n]*|/\*.*?\*/"
    r'|R"(?P<tag>[^()\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])+'",
    re.DOTALL | re.MULTILINE,
)
_CPP_TOKEN = re.compile(r"\b(?:if|for|while|switch|catch|else|do|try)\b|[{}();\n]")
_HEADED = {"if", "for", "while", "switch", "catch"}


def cpp_nesting(source: Source) -> Iterator[Offence]:
    """Yield braces of control statements nested deeper than the limit."""
    text = _CPP_NOISE.sub(lambda match: "\n" * match[0].count("\n"), source.text)
    stack: list[bool] = []  # for each open brace: does it belong to a control statement?
    line, parentheses, control = 1, 0, False
    for token in (match[0] for match in _CPP_TOKEN.finditer(text)):
        if token == "\n":
            line += 1
        elif token == "(":
            parentheses += 1
        elif token == ")":
            parentheses -= 1
        elif token == "{":
            stack.append(control)
            control = False
            if stack[-1] and sum(stack) > MAX_NESTING:
                yield Offence(source.path, line, f"nested {sum(stack)} deep, limit {MAX_NESTING}")
        elif token == "}":
            stack.pop()
        elif token == ";":
            control = control and parentheses > 0  # the two semicolons of a for statement
        else:
            control = True


def duplicates(files: list[Source]) -> Iterator[Offence]:
    """Yield runs of equal code lines that occur in two files."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for source in files:
        lines = list(_code_lines(source))
        for first in range(len(lines) - DUPLICATE_LINES + 1):
            window = lines[first : first + DUPLICATE_LINES]
            places[tuple(text for _, text in window)].append((source.path, window[0][0]))
    reported = set()
    for found in places.values():
        paths = tuple(dict.fromkeys(path for path, _ in found))
        if len(paths) > 1 and paths not in reported:
            reported.add(paths)
            others = ", ".join(f"{path}:{line}" for path, line in found[1:])
            yield Offence(*found[0], f"{DUPLICATE_LINES} or more equal lines in {others}")


_NO_CODE = re.compile(r"#|//|\*|/\*|import\b|from\b.*\bimport\b|using\b|[\W_]*$")


def _code_lines(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of lines that say something: no comment, import or bracket-only line."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        text = " ".join(line.split())
        if not _NO_CODE.match(text):
            yield number, text


_ENVIRONMENT = re.compile(r"\bos\.environ\b|\bgetenv\b|\benviron\b\s*\[|from os import .*environ|\bputenv\b")


def environment_access(files: list[Source]) -> Iterator[Offence]:
    """Yield lines of shipped code that touch the environment outside `kvferry.config`."""
    for source in files:
        if not source.is_shipped or source.path.startswith("core/kvferry/config/"):
            continue
        for number, line in enumerate(source.text.splitlines(), start=1):
            if _ENVIRONMENT.search(line):
                yield Offence(source.path, number, "reads the environment; only kvferry.config may")


def main() -> int:
    """Print the offences; return 1 if there are any."""
    found = check_all(sources())
    for offence in found:
        print(offence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

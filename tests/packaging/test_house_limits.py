from __future__ import annotations

import pytest
from house_limits import DUPLICATE_LINES, Source, check_all, sources


def test_our_code_keeps_the_house_limits() -> None:
    offences = check_all(sources())
    assert not offences, "\n" + "\n".join(map(str, offences))


def test_the_checker_sees_all_of_our_code() -> None:
    paths = {source.path for source in sources()}
    assert {
        "core/kvferry/errors.py",
        "native/include/kvferry/engine.h",
        "tests/packaging/house_limits.py",
    } <= paths


def function_of(lines: int) -> str:
    """Return Python code with one function that has so many lines."""
    return "def f(x):\n" + "".join(f"    x += {number}\n" for number in range(lines - 1))


BRANCHES = "".join(f"    if x == {number}:\n        return {number}\n" for number in range(16))
EQUAL = "".join(f"value_{number} = {number}\n" for number in range(DUPLICATE_LINES))


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("core/kvferry/a.py", "x = 1\n" * 601, "601 lines, limit 600"),
        ("tests/unit/test_a.py", "x = 1\n" * 801, "801 lines, limit 800"),
        ("core/kvferry/a.py", function_of(71), "71 lines, limit 70"),
        ("native/src/a.cc", "void f(int x) {\n" + "  x += 1;\n" * 70 + "}\n", "72 lines, limit 70"),
        ("core/kvferry/a.py", f"def f(x):\n{BRANCHES}", "complexity 17, limit 15"),
        (
            "core/kvferry/a.py",
            "def f(x):\n for a in x:\n  while a:\n   try:\n    if a:\n     pass\n   finally:\n    pass\n",
            "nested 4 deep, limit 3",
        ),
        (
            "native/src/a.cc",
            'void f() {\n  for (;;) {\n    if (a) { // {\n      while (b) {\n        if (c("}")) {\n'
            "        }\n      }\n    }\n  }\n}\n",
            "nested 4 deep, limit 3",
        ),
        ("core/kvferry/a.py", "import os\nx = os.environ['A']\n", "reads the environment"),
        ("native/src/a.cc", 'const char* x = std::getenv("A");\n', "reads the environment"),
    ],
)
def test_an_offender_is_found(path: str, text: str, reason: str) -> None:
    assert any(reason in offence.reason for offence in check_all([Source(path, text)]))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/kvferry/a.py", "x = 1\n" * 600),
        ("tests/unit/test_a.py", "x = 1\n" * 800),
        ("core/kvferry/config/a.py", "import os\nx = os.environ['A']\n"),
        (
            "core/kvferry/a.py",
            "def f(x):\n if x == 1:\n  pass\n" + "".join(f" elif x == {n}:\n  pass\n" for n in range(9)),
        ),
        (
            "core/kvferry/a.py",
            "def f(x):\n for a in x:\n  if a:\n   if x:\n    with a:\n     with x:\n      pass\n",
        ),
        (
            "native/src/a.cc",
            "int f(int x) {\n  switch (x) {\n"
            + "".join(f"    case {n}: return {n};\n" for n in range(20))
            + "  }\n}\n",
        ),
        (
            "native/src/a.cc",
            "#if defined(A)\n#elif defined(B)\n#endif\nnamespace n {\nvoid f() {\n"
            "  for (;;) {\n    if (a) {\n      while (b) {\n      }\n    }\n  }\n}\n}\n",
        ),
        ("native/src/a.cc", "void f() {\n  if (a) {\n    auto g = [] { return S{{{1}}}; };\n  }\n}\n"),
    ],
)
def test_code_within_the_limits_is_left_alone(path: str, text: str) -> None:
    assert check_all([Source(path, text)]) == []


def test_equal_lines_in_two_files_are_found_but_imports_do_not_count() -> None:
    first, second = Source("core/kvferry/a.py", EQUAL), Source("core/kvferry/b.py", f"\n# other\n{EQUAL}")
    (offence,) = check_all([first, second])
    assert str(offence) == ("core/kvferry/a.py:1: 12 or more equal lines in core/kvferry/b.py:3")
    shorter = Source("core/kvferry/b.py", EQUAL[: EQUAL.rindex("value")])
    assert check_all([first, shorter]) == []
    imports = "".join(f"import module_{number}\n" for number in range(20))
    assert check_all([Source("core/kvferry/a.py", imports), Source("core/kvferry/b.py", imports)]) == []


def test_many_long_files_are_an_offence_though_each_is_allowed() -> None:
    long = [Source(f"core/kvferry/f{number}.py", f"x{number} = 1\n" * 500) for number in range(3)]
    assert len(check_all(long)) == 3
    assert check_all(long[:1]) == []

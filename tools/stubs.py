"""Writes core/kvferry/_native.pyi from the built module; --check only says whether it would change.

Needs kvferry with its native module importable, pybind11-stubgen and ruff.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "core" / "kvferry" / "_native.pyi"
_HEADER = "# Made by tools/stubs.py from the built module; do not edit.\n"
# What pybind11 accepts is wider than what we promise.
_NARROWED = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
}


def generate() -> str:
    """Return the text of the stub for the module that this interpreter imports."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "kvferry._native", "--output-dir", folder]
        subprocess.run([*command, "--exit-code"], check=True, timeout=120)
        text = (Path(folder) / "kvferry" / "_native.pyi").read_text()
    for wide, narrow in _NARROWED.items():
        text = text.replace(wide, narrow)
    text = text.replace("BLOCKING: tuple =", "BLOCKING: tuple[str, ...] =").replace(
        "__all__: list =", "__all__: list[str] ="
    )
    text = re.sub(r"collections\.abc\.Sequence(?!\[)", "collections.abc.Sequence[typing.Any]", text)
    text = re.sub(r"^(__version__: str) = .*$", r"\1", text, flags=re.MULTILINE)
    return _formatted(_HEADER + text)


def _formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    name = f"--stdin-filename={STUB}"
    for arguments in (
        ["check", "--fix", "--quiet", "--select=I,F401,RUF022", name],
        ["format", "--quiet", name],
    ):
        done = subprocess.run(
            [*ruff, *arguments, "-"],
            input=text,
            text=True,
            check=True,
            capture_output=True,
            cwd=ROOT,
            timeout=60,
        )
        text = done.stdout
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed stub differs")
    options = parser.parse_args()
    text = generate()
    if not options.check:
        STUB.write_text(text)
        return 0
    committed = STUB.read_text()
    lines = difflib.unified_diff(
        committed.splitlines(), text.splitlines(), "committed", "generated", lineterm=""
    )
    difference = "\n".join(lines)
    if difference:
        print(f"{difference}\n{STUB.relative_to(ROOT)} is out of date: run tools/stubs.py")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())

"""docs/troubleshooting.md covers every check and every error code."""

from __future__ import annotations

import re
from pathlib import Path

from kvferry import errors
from kvferry.cli.host import collect

PAGE = (Path(__file__).resolve().parents[2] / "docs/troubleshooting.md").read_text(encoding="utf-8")


def rows(heading: str) -> set[str]:
    """Return the first cells of the table under a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def test_every_doctor_check_is_explained() -> None:
    assert rows("Checks of `kvferry doctor`") == {check.name for check in collect()}


def test_every_error_code_is_explained() -> None:
    codes = {
        item.code
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, errors.KVFerryError)
    }
    assert rows("Error codes") == codes

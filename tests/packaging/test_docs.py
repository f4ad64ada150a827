"""Commands and flags that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvferry.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_flags_that_a_page_names_exist(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command, rest in re.findall(
        r"\bkvferry (config|doctor|router|sdk|topology)\b([^`\n|]*)", page.read_text(encoding="utf-8")
    ):
        assert main([command, "--help"]) == 0
        known = capsys.readouterr().out
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest):
            assert re.search(rf"{flag}\b", known), f"kvferry {command} has no {flag}"

"""Documentation stated defaults that the code did not have."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from kvferry.config import all_fields, load_config

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
sys.path.insert(0, str(ROOT))


def test_the_generated_pages_are_current() -> None:
    from tools.generate_docs import pages

    for path, text in pages().items():
        hint = f"{path.name} is out of date: run `python -m tools.generate_docs`"
        assert path.read_text(encoding="utf-8") == text, hint


def documented_defaults() -> dict[str, str]:
    """Return key and default of each row of the reference page."""
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([\w.]+)` \| `([^`]*)` \|", page, re.MULTILINE))


def test_each_documented_default_read_as_a_setting_is_the_default_of_the_code() -> None:
    documented = documented_defaults()
    assert documented.keys() == {field.key for field in all_fields()}
    for field in all_fields():
        text = documented[field.key]
        items = [item for item in text.strip("[]").replace('"', "").split(", ") if item]
        value = items if text.startswith("[") else text.strip('"')
        config = load_config({field.key: value}, environ={}, overrides_are_text=not isinstance(value, list))
        assert getattr(getattr(config, field.section), field.name) == field.default, field.key


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_setting_that_a_page_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    keys = {field.key for field in all_fields()} | {"transfer.protocol"}
    named = set(re.findall(r"`((?:transfer|handoff|router|log)\.[a-z_]+)`", text))
    assert named <= keys, named - keys
    variables = {field.environment for field in all_fields()} | {"KVFERRY_PROTOCOL"}
    mentioned = set(re.findall(r"\bKVFERRY_(?:TRANSFER|HANDOFF|ROUTER|LOG)_[A-Z_]+\b", text))
    assert mentioned <= variables, mentioned - variables

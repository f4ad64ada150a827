"""Every test of a real engine is run by exactly one stage of ./test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import stages

ENGINES = Path(__file__).resolve().parents[1] / "engines"
# By hand, when Mooncake's pinned version changes: its answers are kept in tests/data.
BY_HAND = {"mooncake_dropin"}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of each pytest of all stages, without environments made for it."""
    for name in ("ensure_env", "ensure_overlay", "ensure_model", "ensure_wheel"):
        monkeypatch.setattr(stages, name, lambda *_: Path("made"))
    context = stages.Context(fast=False, pytest_args=())
    return [str(word) for stage in stages.ALL for command in stage.commands(context) for word in command.argv]


def test_each_folder_of_engine_tests_belongs_to_one_stage(given: list[str]) -> None:
    folders = {test.parent.name for test in ENGINES.rglob("test_*.py")} - BY_HAND
    assert len(folders) > 5
    run = {folder: given.count(f"tests/engines/{folder}") for folder in folders}
    assert run == dict.fromkeys(folders, 1)
    assert "tests/engines" not in given

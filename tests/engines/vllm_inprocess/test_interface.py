"""A new vLLM changes what the connectors build on: say what, before anything fails in other ways."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.harness import vllm_python

pytestmark = pytest.mark.engine

SCRIPT = Path(__file__).parents[1] / "vllm_interface.py"
KNOWN = SCRIPT.with_suffix(".json")


def changes(known: Any, found: Any, where: str = "") -> list[str]:
    """One line per difference."""
    if isinstance(known, dict):
        names = sorted(known.keys() | found.keys())
        return [
            line for name in names for line in changes(known.get(name), found.get(name), f"{where} / {name}")
        ]
    if isinstance(known, list):
        gone, new = sorted(set(known) - set(found)), sorted(set(found) - set(known))
        return [f"{where}: {name} is gone" for name in gone] + [f"{where}: {name} is new" for name in new]
    return [] if known == found else [f"{where}: was {known}, is {found}"]


def test_what_we_use_of_vllm_is_as_we_know_it() -> None:
    done = subprocess.run([vllm_python(), SCRIPT], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index("{") :])
    different = changes(json.loads(KNOWN.read_text(encoding="utf-8")), found)
    assert not different, (
        "\n".join(different) + f"\nadapt the connector, then renew {KNOWN.name} as {SCRIPT.name} says"
    )


def test_changes_are_named() -> None:
    known = {"a": {"f": "(x)", "g": "(y)"}, "kinds": ["one", "two"]}
    found = {"a": {"f": "(x, z)", "g": "(y)"}, "kinds": ["two", "three"]}
    assert changes(known, found) == [
        " / a / f: was (x), is (x, z)",
        " / kinds: one is gone",
        " / kinds: three is new",
    ]

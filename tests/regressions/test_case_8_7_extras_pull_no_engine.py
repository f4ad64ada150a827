"""Case 8.7: an extra of one plug-in installs another engine, or another torch."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
ENGINES = {"vllm", "sglang", "lmdeploy", "lmcache", "torch", "nixl", "mooncake-transfer-engine"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s<>=!~;\[]", line)[0].lower() for line in requirements}


def test_no_extra_and_no_dependency_names_an_engine_or_torch():
    assert names(PROJECT["dependencies"]) & ENGINES == set()
    extras = PROJECT["optional-dependencies"]
    assert "vllm" in extras
    assert {extra: names(lines) & ENGINES for extra, lines in extras.items()} == {
        extra: set() for extra in extras
    }

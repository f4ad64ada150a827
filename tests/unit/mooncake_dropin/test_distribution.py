"""The distribution kvferry-mooncake: of one version with KVFerry, and no part of KVFerry's wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "connectors/mooncake"


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_it_needs_the_kvferry_that_it_belongs_to() -> None:
    ours, kvferry = project(FOLDER)["project"], project(ROOT)["project"]
    assert ours["version"] == kvferry["version"]
    assert f"kvferry=={kvferry['version']}" in ours["dependencies"]


def test_it_brings_all_of_its_packages_and_kvferry_none_of_them() -> None:
    listed = project(FOLDER)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(listed) == sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))
    assert not [
        path for path in project(ROOT)["tool"]["scikit-build"]["wheel"]["packages"] if "mooncake" in path
    ]


def test_its_commands_exist() -> None:
    for target in project(FOLDER)["project"]["scripts"].values():
        module, _, name = target.partition(":")
        path = FOLDER / f"{module.replace('.', '/')}.py"
        assert f"def {name}(" in path.read_text()

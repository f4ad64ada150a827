from __future__ import annotations

import copy
import importlib.metadata
import pickle
import subprocess
import sys

import pytest

from kvferry.errors import UnsupportedError
from kvferry_lmdeploy import MIGRATION_BACKEND
from unit.lmdeploy_connector import fake_lmdeploy


def test_importing_us_loads_neither_lmdeploy_nor_torch() -> None:
    code = "import sys, kvferry_lmdeploy; print([m for m in ('lmdeploy', 'torch') if m in sys.modules])"
    environ = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_choice_is_one_wherever_it_is_copied_to() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(MIGRATION_BACKEND, protocol)) is MIGRATION_BACKEND
    assert copy.deepcopy({"a": [MIGRATION_BACKEND]})["a"][0] is MIGRATION_BACKEND
    assert repr(MIGRATION_BACKEND) == "<MigrationBackend.KVFerry>"


def test_asking_for_its_name_registers_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.18.0")
    with fake_lmdeploy.installed():
        from lmdeploy.pytorch.disagg.backend.backend import MIGRATION_BACKENDS

        for _ in range(2):
            found = MIGRATION_BACKENDS.module_dict[MIGRATION_BACKEND.name]  # as LMDeploy looks it up
        assert found.__module__ == "kvferry_lmdeploy.backend"


@pytest.mark.parametrize("version", [None, "0.17.1"])
def test_the_command_says_in_one_sentence_why_it_cannot_run(version: str | None) -> None:
    """Not with a traceback before it."""
    code = (
        "import importlib.metadata as metadata, runpy, sys\n"
        "def version(name):\n"
        f"    found = {version!r}\n"
        "    if found is None:\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return found\n"
        "metadata.version = version\n"
        "sys.argv = ['kvferry_lmdeploy', 'serve']\n"
        "runpy.run_module('kvferry_lmdeploy', run_name='__main__')\n"
    )
    environ = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    [sentence] = done.stderr.splitlines()
    assert "LMDeploy is not installed" in sentence or "this is 0.17.1" in sentence


def test_a_missing_or_foreign_lmdeploy_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(UnsupportedError, match=r"not installed.*pip install 'lmdeploy>=0\.18,<0\.19'"):
        MIGRATION_BACKEND.name  # noqa: B018
    versions["lmdeploy"] = "0.17.1"
    with pytest.raises(UnsupportedError, match=r"supports LMDeploy >=0\.18,<0\.19, this is 0\.17\.1"):
        MIGRATION_BACKEND.name  # noqa: B018

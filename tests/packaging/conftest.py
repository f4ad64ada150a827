"""Fixtures: the source distribution, the wheel built from it, and an environment with that wheel in it."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the modules beside the tests can be imported by name

from release import ROOT, Built, run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the source distribution, unpack it in a clean folder and build the wheel there."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder]
    run([*build, "--sdist", ROOT], cwd=folder, timeout_s=120.0)
    (sdist,) = folder.glob("kvferry-*.tar.gz")
    clean = tmp_path_factory.mktemp("clean")
    with tarfile.open(sdist) as archive:
        archive.extractall(clean, filter="data")
    (source,) = clean.iterdir()
    run([*build, "--wheel", source], cwd=clean, timeout_s=900.0)
    (wheel,) = folder.glob("kvferry-*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment; return its interpreter.

    The dependencies come from the environment that runs the tests, so nothing is downloaded.
    """
    folder = tmp_path_factory.mktemp("env")
    run([sys.executable, "-m", "venv", "--without-pip", folder], cwd=folder)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"]
    run([*pip, "--no-deps", "--no-index", built.wheel], cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return python

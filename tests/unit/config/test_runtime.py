from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kvferry.config import make_private, runtime_directory
from kvferry.errors import AccessDeniedError, UnavailableError


def test_the_session_directory_comes_first(tmp_path: Path) -> None:
    found = runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert found == tmp_path / "kvferry"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_without_one_root_uses_run_and_others_their_own_below_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("kvferry.config.runtime.make_private", asked.append)
    monkeypatch.setattr("os.access", lambda *_: True)
    for user in (0, 1234):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        runtime_directory({"XDG_RUNTIME_DIR": "not/absolute"})
    assert asked == [Path("/run/kvferry"), Path("/tmp/kvferry-1234")]


def test_what_is_there_must_be_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    make_private(tmp_path / "fine" / "deeper")
    make_private(tmp_path / "fine" / "deeper")
    make_private(tmp_path / "fine")  # made on the way, and as private
    for name, why in (
        ("file", "not a directory"),
        ("link", "not a directory"),
        ("open", "chmod 700"),
        ("shared", "e.g. .*shared/kvferry$"),
    ):
        with pytest.raises(AccessDeniedError, match=why):
            make_private(tmp_path / name)
    with pytest.raises(UnavailableError, match="cannot make"):
        make_private(tmp_path / "file" / "below")
    ours = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: ours + 1)
    with pytest.raises(AccessDeniedError, match=f"belongs to user {ours}"):
        make_private(tmp_path / "fine" / "deeper")

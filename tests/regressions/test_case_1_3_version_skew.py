"""A connector called what the installed core did not have; the error was swallowed, the cache stayed off."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvferry.cli.host import Level, engines, native
from kvferry.cli.host.report import can_run


def test_a_native_module_of_another_version_is_one_error_with_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "package_version", lambda: "0.2.0")
    check = native.check_native(lambda: SimpleNamespace(__version__="0.1.0"))
    assert check.level is Level.ERROR
    assert "0.1.0" in check.summary
    assert "0.2.0" in check.summary
    assert check.fix
    assert not can_run([check])


def test_an_engine_outside_the_supported_range_is_one_error_with_version_and_range() -> None:
    check = engines.check_engine(engines.ENGINES[0], "0.99.0", ">=0.32,<0.33", ["kvferry"], "")
    assert check.level is Level.ERROR
    assert "0.99.0" in check.summary
    assert ">=0.32,<0.33" in check.summary
    assert ">=0.32,<0.33" in check.fix
    assert not can_run([check])

"""An operator set an option in the environment, an older value in JSON won, nothing told which was used."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.config import explain_rows, load_config
from kvferry.errors import ConfigError

KEY = "handoff.lease_s"


def test_one_option_in_three_places_follows_the_documented_precedence(tmp_path: Path) -> None:
    file = tmp_path / "kvferry.toml"
    file.write_text("[handoff]\nlease_s = 11\n")
    environ = {"KVFERRY_HANDOFF_LEASE_S": "22"}
    argument = {"handoff": {"lease_s": 33}}
    expected = [
        (load_config(argument, environ=environ, file=file), 33.0, "argument"),
        (load_config(environ=environ, file=file), 22.0, "environment KVFERRY_HANDOFF_LEASE_S"),
        (load_config(environ={}, file=file), 11.0, f"file {file}"),
    ]
    for config, value, source in expected:
        assert config.handoff.lease_s == value
        row = next(row for row in explain_rows(config) if row.key == KEY)
        assert (row.value, row.source) == (f"{value:g}s", source)


@pytest.mark.parametrize("place", ["argument", "environment", "file"])
def test_an_unknown_key_is_an_error_in_every_place(place: str, tmp_path: Path) -> None:
    file = tmp_path / "kvferry.toml"
    file.write_text("[handoff]\nleases = 11\n" if place == "file" else "")
    environ = {"KVFERRY_HANDOFF_LEASES": "1"} if place == "environment" else {}
    argument = {"handoff": {"leases": 1}} if place == "argument" else {}
    with pytest.raises(ConfigError, match=r"did you mean \"?(handoff\.lease_s|KVFERRY_HANDOFF_LEASE_S)"):
        load_config(argument, environ=environ, file=file)

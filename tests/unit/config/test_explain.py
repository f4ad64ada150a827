from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.config import TransferOptions, all_fields, explain, explain_changes, load_config
from kvferry.errors import ConfigError

SECRET = "correct horse battery staple"


def test_explain_has_one_line_per_setting_with_value_and_source() -> None:
    config = load_config({"transfer.slice_bytes": 1 << 20}, environ={"KVFERRY_LOG_LEVEL": "debug"})
    lines = explain(config).splitlines()
    assert len(lines) == 1 + len(all_fields())
    assert lines[0].split() == ["key", "value", "source"]
    assert next(line for line in lines if line.startswith("transfer.slice_bytes")).split() == [
        "transfer.slice_bytes",
        "1MiB",
        "argument",
    ]
    assert next(line for line in lines if line.startswith("log.level")).split() == [
        "log.level",
        '"debug"',
        "environment",
        "KVFERRY_LOG_LEVEL",
    ]


def test_changes_fit_into_one_log_line() -> None:
    assert explain_changes(load_config(environ={})) == "all at their defaults"
    config = load_config({"transfer.cluster_secret": SECRET}, environ={"KVFERRY_LOG_LEVEL": "debug"})
    assert explain_changes(config) == (
        'transfer.cluster_secret=******** (argument), log.level="debug" (environment KVFERRY_LOG_LEVEL)'
    )


def test_a_secret_is_never_shown() -> None:
    config = load_config({"transfer.cluster_secret": SECRET}, environ={})
    assert config.transfer.cluster_secret == SECRET
    for text in (explain(config), repr(config), repr(config.transfer), str(config)):
        assert SECRET not in text
        assert "********" in text
    assert "********" not in repr(TransferOptions())


def test_a_secret_of_the_wrong_type_is_not_shown_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"transfer.cluster_secret": [SECRET]}, environ={})
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_config({"transfer": SECRET}, environ={})
    assert SECRET not in str(caught.value)


def test_the_secret_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    config = load_config(environ={"KVFERRY_TRANSFER_CLUSTER_SECRET_FILE": str(file)})
    assert config.transfer.cluster_secret == SECRET
    assert config.sources["transfer.cluster_secret"] == f"file {file}"
    with pytest.raises(ConfigError, match="give one of them"):
        load_config(
            {"transfer.cluster_secret": "x" * 16, "transfer.cluster_secret_file": str(file)}, environ={}
        )
    with pytest.raises(ConfigError, match="cannot read"):
        load_config({"transfer.cluster_secret_file": str(tmp_path / "none")}, environ={})
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        load_config({"transfer.cluster_secret_file": str(file)}, environ={})

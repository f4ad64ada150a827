from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvferry.cli
from kvferry.cli import main
from kvferry.config import all_fields, to_markdown
from kvferry.errors import ConfigError

# What an interpreter of its own runs first.
_IMPORTED = (
    f"import sys; sys.path.insert(0, {str(Path(kvferry.cli.__file__).parents[2])!r})\n"
    "from kvferry.cli import main\n"
)


@pytest.fixture(autouse=True)
def _away_from_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_lists_every_command_without_importing_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("config", "doctor", "router", "sdk", "topology"))


@pytest.mark.parametrize("name", ["config", "doctor", "router", "sdk", "topology"])
def test_every_listed_command_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"kvferry {name}" in capsys.readouterr().out


def test_an_error_is_one_line_without_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_TRANSFER_TCP_STREAMS", "many")
    assert main(["config"]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "error: transfer.tcp_streams: 'many' from environment KVFERRY_TRANSFER_TCP_STREAMS is not allowed; "
        "expected integer from 1 to 64\n"
    )
    assert captured.out == ""


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError):
        main(["--debug", "config"])


def test_wrong_usage_is_explained_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["confg"]) == 2
    assert "confg" in capsys.readouterr().err
    assert main(["config", "--jsn"]) == 2
    assert "--json" in capsys.readouterr().err


def test_config_explains_values_and_sources(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[handoff]\nlease_s = "45s"\n')
    assert main(["config", "--explain", "--file", str(file)]) == 0
    out = capsys.readouterr().out
    assert any(line.split() == ["handoff.lease_s", "45s", "file", str(file)] for line in out.splitlines())
    assert main(["config", "--json"]) == 0
    assert {row["key"] for row in json.loads(capsys.readouterr().out)} == {
        field.key for field in all_fields()
    }


def test_config_schema_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--schema"]) == 0
    out = capsys.readouterr().out
    assert all(field.key in out and field.environment in out for field in all_fields())
    assert main(["config", "--schema", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(all_fields())
    assert main(["config", "--markdown"]) == 0
    assert capsys.readouterr().out == to_markdown()


def test_output_into_a_pipe_that_closes_early_gives_no_traceback() -> None:
    code = (
        f"{_IMPORTED}"
        "sys.stdin.read()\n"  # until the other end of stdout is closed
        "sys.exit(main(['config', '--schema']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=60)
    assert errors == b""


def test_output_onto_a_full_disk_is_one_line() -> None:
    code = f"{_IMPORTED}sys.exit(main(['config', '--schema']))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "error: cannot write what was asked for: No space left on device"
    ]


def test_the_command_imports_nothing_heavy() -> None:
    code = (
        f"{_IMPORTED}"
        "main(['--help'])\n"
        "heavy = {'numpy', 'aiohttp', 'asyncio', 'torch', 'kvferry._native', 'msgspec'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr

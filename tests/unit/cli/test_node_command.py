from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.cli import main


def test_an_ssd_directory_that_is_a_file_is_named_with_its_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["node", "--dram", "16MiB", "--ssd", f"{file}:1GiB"]) == 2
    assert capsys.readouterr().err == (
        f"error: store.ssd_directory (--ssd DIR:SIZE) is {file}, which is no directory: name one, or a path "
        "where one can be made\n"
    )


def test_an_ssd_size_that_is_too_small_gives_the_least(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node", "--dram", "16MiB", "--ssd", f"{tmp_path}:1KiB"]) == 2
    assert capsys.readouterr().err == (
        "error: store.ssd (--ssd DIR:SIZE) is 1KiB; the SSD tier needs 256KiB at least\n"
    )

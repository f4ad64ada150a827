from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.config import AdminOptions, admin_token
from kvferry.errors import ConfigError


def test_white_space_around_a_token_is_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b" a long and secret token\n")
    assert admin_token(AdminOptions(token_file=str(file))) == b"a long and secret token"
    assert admin_token(AdminOptions()) == b""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\n", "is empty"),
        (b"two\nlines", "one line"),
        (b"\xff\xfe", "printable ASCII"),
        (None, "No such file"),
    ],
)
def test_what_cannot_be_a_token_is_refused_by_its_file(
    content: bytes | None, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        admin_token(AdminOptions(token_file=str(file)))
    assert str(file) in str(caught.value)

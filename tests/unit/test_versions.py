from __future__ import annotations

import pytest

from kvferry.errors import InvalidArgumentError
from kvferry.versions import in_range, release_of


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.32.0", True),
        ("0.32.0+cpu", True),
        ("0.32", True),
        ("0.32.7.post1", True),
        ("0.31.9", False),
        ("0.33.0", False),
        ("0.33.0rc1", False),
        ("1.0", False),
        ("0.4", False),
    ],
)
def test_in_range_compares_numbers_not_text(version: str, expected: bool) -> None:
    assert in_range(version, ">=0.32,<0.33") is expected


def test_trailing_zeros_do_not_matter() -> None:
    assert in_range("1.2.0", "==1.2")
    assert in_range("1.2", "<=1.2.0")
    assert not in_range("1.2.0", ">1.2")
    assert release_of("v10.0") == (10,)


@pytest.mark.parametrize(("version", "wanted"), [("unknown", ">=1"), ("1.0", "~=1"), ("1.0", "")])
def test_text_that_is_no_version_is_refused(version: str, wanted: str) -> None:
    with pytest.raises(InvalidArgumentError):
        in_range(version, wanted)

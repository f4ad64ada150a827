"""Every decoder of bytes from outside has a fuzz target, and every target a small committed corpus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
FUZZ = NATIVE / "fuzz"
MAX_FILES, MAX_BYTES = 400, 64 << 10

TARGETS = sorted(path.stem for path in FUZZ.glob("*_fuzz.cc"))


def decoders() -> set[str]:
    """`Type::decode` and `Type::parse` of all headers; a base class's for each that derives from it."""
    found = set()
    for header in [*(NATIVE / "src").rglob("*.h"), *(NATIVE / "include").rglob("*.h")]:
        text = header.read_text(encoding="utf-8")
        found |= set(re.findall(r"static Result<(?:\w+::)*(\w+)> (decode|parse)\(", text))
        found |= {(name, "decode") for name in re.findall(r"struct (\w+) : DataMessage<", text)}
    return {f"{name}::{verb}" for name, verb in found - {("Message", "decode")}}


def test_every_decoder_has_a_fuzz_target() -> None:
    fuzzed = "".join((FUZZ / f"{target}.cc").read_text(encoding="utf-8") for target in TARGETS)
    known = decoders()
    assert {"Hello::decode", "Read::decode", "FrameHeader::decode", "NodeId::parse"} <= known
    missing = {name for name in known if f"{name}(" not in fuzzed}
    assert missing == set()


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_a_small_committed_corpus(target: str) -> None:
    files = [path for path in (FUZZ / "corpus" / target).iterdir() if path.is_file()]
    assert 3 <= len(files) <= MAX_FILES
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES


def test_no_corpus_is_left_of_a_target_that_is_gone() -> None:
    assert {path.name for path in (FUZZ / "corpus").iterdir()} == set(TARGETS)

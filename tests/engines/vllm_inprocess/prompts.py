"""Prompts as token ids: at block borders, in several chunks, with shared beginnings."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engines.engine_lab import Answer

BLOCK = 32
MAX_TOKENS = 24
_TOKENS = range(300, 2000)


def _tokens(length: int, seed: int) -> list[int]:
    pick = random.Random(seed)
    return [pick.choice(_TOKENS) for _ in range(length)]


def prompts() -> list[list[int]]:
    """24 prompts; `numbered` ones are others."""
    lengths = [1, 2, 5, 20, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 200, 300, 511, 512, 513, 1200]
    shared = _tokens(640, seed=1000)
    return [
        *(_tokens(length, seed=length) for length in lengths),
        shared,
        shared + _tokens(30, seed=1001),
        shared + _tokens(100, seed=1002),
        _tokens(1900, seed=1003),
    ]


def fifty() -> list[list[int]]:
    """50 prompts of 20 to 461 tokens that share no beginning."""
    return [_tokens(20 + 9 * index, seed=5000 + index) for index in range(50)]


def numbered(count: int, length: int = 70, seed: int = 0) -> list[list[int]]:
    """Prompts of one length, all different."""
    return [_tokens(length, seed=10_000 * (seed + 1) + 100 * length + index) for index in range(count)]


def tokens_of(answers: Sequence[Answer]) -> list[list[int]]:
    """The tokens of each answer."""
    return [answer["tokens"] for answer in answers]

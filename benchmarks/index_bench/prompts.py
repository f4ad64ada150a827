"""What is indexed: long documents on a few shared system prompts. The same ones in every process."""

from __future__ import annotations

import numpy as np

BLOCK_TOKENS = 16
SYSTEM_PROMPTS, SYSTEM_TOKENS = 10, 8_000
PROMPT_TOKENS = 100_000
DOCUMENTS = 160  # 925,000 blocks


def prompt(number: int) -> np.ndarray:
    """Tokens of one document, int32; a number of DOCUMENTS or more has its system prompt in common only."""
    system = np.random.default_rng([1, number % SYSTEM_PROMPTS]).integers(0, 150_000, SYSTEM_TOKENS, np.int32)
    rest = np.random.default_rng([2, number]).integers(0, 150_000, PROMPT_TOKENS - SYSTEM_TOKENS, np.int32)
    return np.concatenate([system, rest])


def distinct_blocks(documents: int) -> int:
    """How many blocks so many documents have together."""
    shared = min(documents, SYSTEM_PROMPTS) * (SYSTEM_TOKENS // BLOCK_TOKENS)
    return shared + documents * ((PROMPT_TOKENS - SYSTEM_TOKENS) // BLOCK_TOKENS)

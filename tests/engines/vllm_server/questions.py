"""The prompts of the parity tests: short, long, block borders, shared beginnings, chats, not only ASCII."""

from __future__ import annotations

import random
from typing import Any

from engines.harness import BLOCK_SIZE, ROOT, completion_body

MAX_TOKENS = 24
_TOKEN_IDS = range(300, 2000)  # ordinary tokens in every model that the tests use


def token_ids(length: int, seed: int) -> list[int]:
    """A prompt of exactly `length` seeded random tokens."""
    pick = random.Random(seed)
    return [pick.choice(_TOKEN_IDS) for _ in range(length)]


def _chat(*turns: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]


def prompts() -> dict[str, Any]:
    """Title -> prompt (text, token ids or messages). 26 of them."""
    text = (ROOT / "LICENSE").read_text()
    shared = token_ids(20 * BLOCK_SIZE, seed=7)
    around = {
        f"{length} tokens": token_ids(length, seed=length)
        for length in (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 4 * BLOCK_SIZE - 1)
    }
    return {
        **around,
        "500 tokens": token_ids(500, seed=1),
        "1200 tokens": token_ids(1200, seed=2),
        "1900 tokens": token_ids(1900, seed=3),
        "shared beginning, 1": shared + token_ids(60, seed=4),
        "shared beginning, 2": shared + token_ids(100, seed=5),
        "shared beginning, all of it": shared,
        "one word": "Hello",
        "one sentence": "The quick brown fox jumps over the lazy dog, and then",
        "page of text": text[200:1700],
        "two pages of text": text[1700:4600],
        "code": "def fibonacci(n: int) -> int:\n    " * 6,
        "accents": "Où est la gare ? Straße, naïve, façade, Ærøskøbing. " * 3,
        "ideographs and emoji": "東京は日本の首都です。🚢 Κείμενο на русском языке.",
        "white space": " \n\n\t  spaces   and\nlines \n",
        "chat": _chat("What is the capital of France?"),
        "chat, long": _chat(f"Summarise:\n{text[4600:6600]}"),
        "chat, same text": _chat(f"Summarise:\n{text[4600:6600]}\nIn one word."),
        "chat, several turns": _chat("Hi!", "Hello, how can I help?", "Count from 1 to 10."),
        "chat, not ASCII": _chat("Traduis : « 你好世界 » 🙂"),
        "chat with system": [
            {"role": "system", "content": "Answer briefly."},
            *_chat("Why is the sky blue?"),
        ],
    }


def bodies() -> dict[str, dict[str, Any]]:
    """Title -> greedy request."""
    return {
        title: completion_body(prompt, MAX_TOKENS, ignore_eos=True) for title, prompt in prompts().items()
    }

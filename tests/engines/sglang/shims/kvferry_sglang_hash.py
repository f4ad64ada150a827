"""For CPU runs in tests only: SGLang's hash of pages, which SGLang compiles from C++ on first use (with a
compiler, ninja and OpenSSL's headers, in half a minute of a busy machine). The results are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np


def get_hash(
    raw_tokens: Any,
    logical_len: int,
    unit_width: int,
    is_bigram: bool,
    prior_digest: bytes | None,
    page_size: int | None = None,
) -> str | list[str]:
    """Return the hash of all tokens, or with a page size one for each page, chained after `prior_digest`."""
    tokens = np.frombuffer(raw_tokens, dtype=np.dtype(f"u{raw_tokens.itemsize}"))
    if is_bigram:  # each token with the one behind it
        tokens, unit_width = np.stack([tokens[:-1], tokens[1:]], axis=1).reshape(-1), 2
    words = tokens[: logical_len * unit_width]
    if len(words) and int(words.max()) > 0xFFFFFFFF:
        raise NotImplementedError("tokens of more than 32 bits")
    words = words.astype(np.uint32)
    if page_size is None:
        return next(_chain([words], prior_digest))
    step = page_size * unit_width
    return list(_chain([words[at : at + step] for at in range(0, len(words), step)], prior_digest))


def _chain(pages: list[np.ndarray], digest: bytes | None) -> Iterator[str]:
    for page in pages:
        digest = hashlib.sha256((digest or b"") + page.tobytes()).digest()
        yield digest.hex()

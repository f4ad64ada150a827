"""Block keys: 128 bits that stand for everything a KV block's bytes depend on. The encoding: docs/keys.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from kvferry import _native
from kvferry.index._arrays import Keys, new_keys, tokens_array

Algorithm = Literal["sha256", "xxh3"]


class ContentSpan(NamedTuple):
    """Tokens that stand for something else, such as an image.

    `first_token` counts from the first token of the call (negative: it began earlier); `id` is a digest of
    the content, not empty. It becomes part of the key of every block that the span touches.
    """

    first_token: int
    tokens: int
    id: bytes | str


@dataclass(frozen=True, kw_only=True)
class KeyIdentity:
    """What a block's bytes depend on besides tokens, and who may share it.

    Texts may be `str` or `bytes` of up to 64 KiB; an empty one is the same as none. `extra` holds further
    names and values; their order does not count. Blocks are shared between requests whose identities are
    equal in every field, and with nobody else: give each user group that must not share a `tenant`, and a
    request that must not share its own `salt`.
    """

    model: str | bytes = ""
    revision: str | bytes = ""
    geometry: str | bytes = ""
    """Digest of the KV geometry, or any text that stands for it."""
    dtype: str | bytes = ""
    layout: str | bytes = ""
    block_tokens: int = 16
    """Tokens of a block: 1 to 65,536."""
    tensor_parallel: int = 1
    """Into how many parts the heads of a block are cut."""
    group: int = 0
    """KV cache group of the model."""
    lora: str | bytes = ""
    """The adapter: a digest of its content, or its name and revision."""
    salt: str | bytes = ""
    tenant: str | bytes = ""
    extra: Mapping[str, str | bytes] = field(default_factory=dict)


class KeySpace:
    """The keys of one identity. Immutable and thread-safe; hashing releases the interpreter lock.

    `secret` keys the hash: whoever does not know it can neither compute keys nor aim at collisions. All
    members of a cluster need the same one; "" for none. `algorithm`: "sha256" (default) or "xxh3", which
    takes a sixth of the time and is no cryptographic hash: for clusters whose prompts are trusted.

    Raises `InvalidArgumentError` for fields out of their limits.
    """

    def __init__(
        self, identity: KeyIdentity, *, algorithm: Algorithm = "sha256", secret: str | bytes = b""
    ) -> None:
        fields = {name: value for name, value in vars(identity).items() if name != "extra"}
        extra = [(_raw(name), _raw(value)) for name, value in identity.extra.items()]
        self._native = _native.KeySpace(fields, extra, algorithm, _raw(secret))
        self.identity = identity
        self.algorithm = algorithm
        self.root = self._native.root
        """The parent of a prompt's first block: 16 bytes that stand for the identity."""

    def keys(self, tokens: Any, *, parent: bytes | None = None, spans: Iterable[ContentSpan] = ()) -> Keys:
        """Return one key for each whole block of `tokens`, as rows of 16 bytes; what is left over has no key.

        `tokens`: an int32 buffer (numpy, array, memoryview, torch on the host) is read in place; other
        integers are converted. `parent`: the key of the block before, if they do not begin a prompt. Do not
        write to `tokens` meanwhile.
        """
        array = tokens_array(tokens)
        out = new_keys(len(array) // self.identity.block_tokens)
        self._native.keys(parent or self.root, array, _raw_spans(spans), out)
        return out

    def of_engine_hashes(self, hashes: Sequence[bytes]) -> Keys:
        """Return the keys of blocks that an engine has already named by its own block hashes.

        An engine's hash must stand for the tokens of its block and all before it. Such keys differ from
        those of `keys`.
        """
        out = new_keys(len(hashes))
        self._native.of_engine_hashes(list(hashes), out)
        return out

    def chain(self, *, parent: bytes | None = None, position: int = 0) -> KeyChain:
        """Return the keys of a sequence that grows, from its beginning or after the block `parent`."""
        return KeyChain(self, parent or self.root, position)


class KeyChain:
    """Keys of a sequence that grows, token by token or in any pieces. Thread-safe."""

    def __init__(self, space: KeySpace, parent: bytes, position: int) -> None:
        self._native = _native.KeyChain(space._native, parent, position)

    def extend(self, tokens: Any, *, spans: Iterable[ContentSpan] = ()) -> Keys:
        """Add tokens and return the keys of the blocks that they complete.

        `spans` count from the first of these tokens; one that goes on after them is remembered. After an
        error nothing has changed.
        """
        keys = self._native.extend(tokens_array(tokens), _raw_spans(spans))
        return np.frombuffer(keys, np.uint8).reshape(-1, 16)

    @property
    def last(self) -> bytes:
        """The key of the last whole block, or the parent given."""
        return self._native.last

    @property
    def position(self) -> int:
        """The number of the next token."""
        return self._native.position

    @property
    def pending_tokens(self) -> int:
        """How many tokens follow the last whole block."""
        return self._native.pending_tokens


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _raw_spans(spans: Iterable[ContentSpan]) -> list[tuple[int, int, bytes]]:
    return [(first, tokens, _raw(name)) for first, tokens, name in spans]

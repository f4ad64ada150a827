"""Names of blocks in the pool: what a block's bytes depend on, and which rank's part it is.

A name is the block key (16 bytes, `kvferry.index`) followed by the rank (2 bytes). The key covers the
identity (model, revision, dtype, layout, geometry, ranks, group) and, by the engine's own hash of the block,
all tokens up to its end and whatever else the engine puts into it: adapter, salt, images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from kvferry.index import KeyIdentity, KeySpace
from kvferry.layout import KVGeometry

KEY_BYTES = 16
RANK_BYTES = 2


class GroupShape(NamedTuple):
    """A KV cache group as the pool sees it.

    `hashes_per_block`: the engine hashes its tokens in pieces that are a block of this group, or a part of
    one. `window_tokens`: 0 if a token looks at all tokens before it, else at how many. `open_end`: the end of
    a block depends on the token after it, too, as in layers of a draft that reads one token ahead.
    """

    block_tokens: int
    hashes_per_block: int = 1
    window_tokens: int = 0
    open_end: bool = False


class PoolIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the bytes of an engine's blocks depend on besides tokens, and who may share them.

    `hashing` names how the engine hashes blocks, `namespace` is the user's own word for what nothing else
    tells, such as weights that were replaced in place.
    """

    model: str
    revision: str
    dtype: str
    ranks: int
    layouts: tuple[str, ...]  # by group: how the bytes of a block are arranged, and all sizes
    draft: str = ""
    hashing: str = ""
    namespace: str = ""
    tenant: str = ""


def identity_of(geometry: KVGeometry, *, hashing: str, namespace: str = "", tenant: str = "") -> PoolIdentity:
    """Return the identity of an engine whose ranks have caches of this geometry, each its own part."""
    return PoolIdentity(
        model=geometry.model,
        revision=geometry.revision,
        dtype=geometry.dtype,
        ranks=geometry.tp_size * geometry.pp_size,
        layouts=tuple(geometry.describe_table(table) for table in range(geometry.tables)),
        draft=geometry.draft,
        hashing=hashing,
        namespace=namespace,
        tenant=tenant,
    )


class PoolKeys:
    """Names the blocks of one engine. Immutable and thread-safe. Raises `InvalidArgumentError` for fields out
    of the limits of `KeyIdentity`.
    """

    def __init__(
        self, identity: PoolIdentity, groups: Sequence[GroupShape], *, secret: str | bytes = b""
    ) -> None:
        self.groups = tuple(groups)
        self.ranks = identity.ranks
        extra = {
            "draft": identity.draft,
            "hashing": identity.hashing,
            "namespace": identity.namespace,
            "groups": str(len(groups)),
        }
        self._spaces = [
            KeySpace(
                KeyIdentity(
                    model=identity.model,
                    revision=identity.revision,
                    dtype=identity.dtype,
                    layout=layout,
                    block_tokens=shape.block_tokens,
                    tensor_parallel=identity.ranks,
                    group=index,
                    tenant=identity.tenant,
                    extra={name: value for name, value in extra.items() if value},
                ),
                secret=secret,
            )
            for index, (shape, layout) in enumerate(zip(groups, identity.layouts, strict=True))
        ]
        self.tag = "kv-" + self._spaces[0].root[:8].hex()
        """Which objects in the store are this identity's."""

    def of_blocks(self, group: int, hashes: Sequence[bytes], first: int = 0) -> list[bytes]:
        """Return the keys of the whole blocks of a group from block `first` on, of the engine's hashes of a
        request.
        """
        step = self.groups[group].hashes_per_block
        wanted = list(hashes[(first + 1) * step - 1 :: step])
        return [key.tobytes() for key in self._spaces[group].of_engine_hashes(wanted)] if wanted else []


def names_of(keys: Sequence[bytes], ranks: Sequence[int]) -> np.ndarray:
    """Return the names of blocks, uint8 [blocks * ranks, 18]: those of one block follow one another."""
    suffixes = np.array(ranks, dtype="<u2").view(np.uint8).reshape(1, len(ranks), RANK_BYTES)
    bodies = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), 1, KEY_BYTES)
    shape = (len(keys), len(ranks))
    rows = np.concatenate(
        [
            np.broadcast_to(bodies, (*shape, KEY_BYTES)),
            np.broadcast_to(suffixes, (*shape, RANK_BYTES)),
        ],
        axis=2,
    )
    return rows.reshape(-1, KEY_BYTES + RANK_BYTES)

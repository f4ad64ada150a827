"""Names of SGLang's pages in the pool: all that their bytes depend on.

SGLang's own hash of a page stands for its tokens, all tokens before it, and the adapter and salt of the
request. Nothing else is in it: model, revision, data types, arrangement of the bytes and which rank's part it
is come from here, so that engines that differ in any of them never meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvferry.config import Config
from kvferry.errors import UnsupportedError
from kvferry.pool import GroupShape, PoolIdentity, PoolKeys, names_of

HASHING = "sglang/sha256"  # chained over pages
_REVISION = ("revision", "weight_version", "json_model_override_args", "unnamed_weights")


class ModelFacts(NamedTuple):
    """What the operator told SGLang of the model; of a draft model if that is what a pool belongs to."""

    model: str
    revision: str
    dtype: str
    draft: str = ""


class Shard(NamedTuple):
    """Which part of a page a rank has. `tp_size` parts of heads, unless all ranks hold the same."""

    tp_rank: int
    tp_size: int
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1

    @property
    def number(self) -> int:
        """The part's number, of `total`."""
        return (self.pp_rank * self.cp_size + self.cp_rank) * self.tp_size + self.tp_rank

    @property
    def total(self) -> int:
        """The number of parts of a page."""
        return self.tp_size * self.pp_size * self.cp_size

    @property
    def shape(self) -> str:
        """How pages are cut into parts."""
        return f"tp{self.tp_size} pp{self.pp_size} cp{self.cp_size}"


def facts_of(server_args: Any, fallback_model: str, now: Mapping[str, Any] | None = None) -> ModelFacts:
    """Return what the operator's arguments say, or `now` instead; without any, the model's name only."""
    now = now or {}

    def value(name: str) -> str:
        return str(now.get(name, getattr(server_args, name, None)) or "")

    def text(*names: str) -> str:
        values = map(value, names)
        return " ".join(f"{name}={value}" for name, value in zip(names, values, strict=True) if value)

    # All other formats load the same weights.
    random = " load_format=dummy" if value("load_format") == "dummy" else ""
    return ModelFacts(
        model=value("model_path") or fallback_model,
        revision=text(*_REVISION) + random,
        dtype=text("dtype", "kv_cache_dtype", "quantization", "quantization_param_path"),
        draft=text("speculative_draft_model_path", "speculative_draft_model_revision"),
    )


def shard_of(storage: Any, *, replicated: bool) -> Shard:
    """Return which part this rank has, by SGLang's storage configuration. `replicated`: all tensor-parallel
    ranks hold the same bytes. Raises UnsupportedError for decode context parallelism.
    """
    if storage.dcp_size > 1:
        raise UnsupportedError(
            f"kvferry_sglang does not support decode context parallelism (dcp_size={storage.dcp_size}) yet"
        )
    tp_rank, tp_size = (0, 1) if replicated else (storage.tp_rank, storage.tp_size)
    return Shard(
        tp_rank, tp_size, storage.pp_rank, storage.pp_size, storage.attn_cp_rank, storage.attn_cp_size
    )


class PageNames:
    """Names the pages of one pool of one rank. Immutable and thread-safe.

    `parts`: a page of this rank is so many objects, of as many ranks of a wider engine; else 1.
    """

    def __init__(
        self, config: Config, facts: ModelFacts, shard: Shard, *, page: int, layout: str, parts: int = 1
    ) -> None:
        identity = PoolIdentity(
            model=facts.model,
            revision=facts.revision,
            dtype=facts.dtype,
            ranks=shard.total * parts,
            layouts=(f"{shard._replace(tp_size=shard.tp_size * parts).shape} {layout}",),
            hashing=HASHING,
            namespace=config.pool.namespace,
            tenant=config.store.tenant,
        )
        self._keys = PoolKeys(identity, [GroupShape(page)], secret=config.transfer.cluster_secret)
        self._ranks = [shard.number * parts + part for part in range(parts)]
        self.parts = parts
        self.tag = self._keys.tag

    def of(self, hashes: Sequence[str]) -> np.ndarray:
        """Return the names of pages, by SGLang's hashes in hex: uint8 [pages * parts, 18].

        Raises ValueError if one is not hex.
        """
        if not hashes:
            return np.zeros((0, 18), np.uint8)
        return names_of(self._keys.of_blocks(0, [bytes.fromhex(each) for each in hashes]), self._ranks)

    def parents(self, names: np.ndarray, before: str | None) -> list[bytes]:
        """Return the name of the page before each, where `names` follow one another, the first `before`."""
        first = self.of([before]) if before else None
        heads = [b""] * self.parts if first is None else [row.tobytes() for row in first]
        return [*heads, *(row.tobytes() for row in names[: -self.parts])] if len(names) else []

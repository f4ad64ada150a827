"""What the store's calls give back."""

from __future__ import annotations

from typing import NamedTuple

from kvferry.errors import KVFerryError


class PutResult(NamedTuple):
    """What became of one key of a put."""

    error: KVFerryError | None
    created: bool  # false without an error: the same bytes were stored under that key already
    replicas: int  # nodes known to hold it now


class GetResult(NamedTuple):
    """What became of one key of a get. `OutOfRangeError`: the object is longer than the target; `bytes`
    tells.
    """

    error: KVFerryError | None  # NotFoundError: absent
    bytes: int

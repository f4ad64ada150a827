"""What a consumer reads of a prompt's KV cache before its prefill is finished."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvferry.errors import KVFerryError

if TYPE_CHECKING:
    from kvferry.transfer import Transfer

Pieces = npt.NDArray[np.uint64]
LOCAL_REGION, LOCAL_OFFSET = 0, 2  # columns of pieces


class EarlyPulls:
    """The early transfers of one load, and which local blocks they fill.

    None of it is trusted before the lease is confirmed; all of it is void once the producer began anew. For
    one thread at a time, except `cancel`.

    `blocks`: the local blocks in token order, the first one beginning at `first_token`; `stride`: bytes from
    one to the next in each region.
    """

    def __init__(self, blocks: Sequence[int], stride: int, block_size: int, first_token: int) -> None:
        self._blocks = np.asarray(blocks, dtype=np.uint64)
        self._stride = stride
        self._block_size = block_size
        self.first_token = first_token
        self._filled: dict[int, int] = {}  # local region -> tokens [first_token, here) are under way or there
        self._lock = threading.Lock()
        self._transfers: list[Transfer] = []
        self._void: list[Transfer] = []

    @property
    def bytes(self) -> int:
        """How much the transfers that count have moved."""
        return sum(int(transfer.bytes) for transfer in self._transfers)

    @property
    def transport(self) -> str:
        """By which transport, empty without transfers."""
        return self._transfers[-1].transport if self._transfers else ""

    def filled_to(self, region: int) -> int:
        """Where the next early transfer into a region begins, in tokens."""
        return self._filled.get(region, self.first_token)

    def add(self, transfer: Transfer, filled: Mapping[int, int]) -> None:
        """Take in a transfer after which the regions are filled up to these tokens."""
        with self._lock:
            self._transfers.append(transfer)
        self._filled.update(filled)

    def in_flight(self) -> int:
        """How many transfers still touch local memory, void ones included."""
        with self._lock:
            return sum(not one.settled for one in (*self._transfers, *self._void))

    def begin_anew(self) -> None:
        """Drop everything: the producer computes the prompt again, in other blocks perhaps."""
        self.cancel()
        with self._lock:
            self._void, self._transfers = [one for one in self._all() if not one.settled], []
        self._filled = {}

    def has_void_in_flight(self) -> bool:
        """Whether a dropped transfer may still write; nothing may be read into its blocks before."""
        with self._lock:
            self._void = [one for one in self._void if not one.settled]
            return bool(self._void)

    def cancel(self) -> None:
        """End all transfers soon. Thread-safe."""
        with self._lock:
            left = [one for one in self._all() if not one.settled]
        for transfer in left:
            transfer.cancel()

    def unsettled(self) -> list[Transfer]:
        """The transfers to wait for before anything else touches the blocks."""
        with self._lock:
            return [one for one in self._all() if not one.settled]

    def error(self) -> KVFerryError | None:
        """Why one of the transfers that count failed, once all have settled."""
        for transfer in self._transfers:
            try:
                transfer.raise_if_failed()
            except KVFerryError as error:
                return error
        return None

    def remainder(self, pieces: Pieces) -> Pieces:
        """Of the pieces of the whole load, those that were not read early."""
        wanted = np.ones(len(pieces), dtype=bool)
        block = pieces[:, LOCAL_OFFSET] // np.uint64(self._stride)
        for region, end_token in self._filled.items():
            count = -(-(end_token - self.first_token) // self._block_size)
            there = np.isin(block, self._blocks[:count])
            wanted &= ~((pieces[:, LOCAL_REGION] == region) & there)
        return np.ascontiguousarray(pieces[wanted])

    def _all(self) -> list[Transfer]:
        return [*self._transfers, *self._void]

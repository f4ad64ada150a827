"""What a scheduler that is about to run the encoder decides: wait for the store, load from it, or encode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvferry.encoder.reader import Answer, EncoderReader
from kvferry.encoder.tensors import EncodedTensor


class Medium(NamedTuple):
    """One image, clip or sound of a request. `name`: the engine's digest of its content."""

    name: str
    rows: int  # of the encoder's output
    patience_s: float = 0.0  # how long it may take until somebody else has put it


class EncoderStep(NamedTuple):
    """One step's orders for the workers."""

    loads: dict[str, EncodedTensor]  # into the engine's encoder cache, before the encoder runs
    publish: list[str]  # in the engine's cache already: make sure that the store has it, too


class EncoderPlanner:
    """One per scheduler. Not thread-safe; nothing blocks.

    `reader` None: this engine only makes outputs for others.
    """

    def __init__(self, reader: EncoderReader | None, *, publishes: bool) -> None:
        self._reader = reader
        self._publishes = publishes
        self._here: set[str] = set()  # in the engine's own encoder cache
        self._publish: set[str] = set()
        # Whatever `has` said yes to in this step must be there when the step is made up.
        self._promised: dict[str, EncodedTensor] = {}
        self._loads: dict[str, EncodedTensor] = {}

    def settled(self, media: Iterable[Medium]) -> bool:
        """Say whether the request with these media can go on: all are at hand, or known to be absent."""
        settled = True
        for medium in media:
            if medium.name in self._here:
                if self._publishes:
                    self._publish.add(medium.name)
            elif self._reader is not None:
                answer = self._reader.ask(medium.name, medium.rows, patience_s=medium.patience_s)
                settled = settled and answer is not Answer.WAIT
        return settled

    def has(self, name: str) -> bool:
        """Say whether a medium will be loaded if it is needed in this step, so that nobody encodes it."""
        if self._reader is None:
            return False
        found = self._reader.ready(name)
        if found is not None:
            self._promised[name] = found
        return name in self._promised

    def allocated(self, name: str) -> None:
        """Note that the engine made room for a medium: it is loaded if `has` said so, else encoded."""
        self._here.add(name)
        promised = self._promised.get(name)
        if promised is not None:
            self._loads[name] = promised
        if self._reader is not None:
            self._reader.forget(name)

    def take_step(self, freed: Iterable[str]) -> EncoderStep:
        """Return the step's orders and begin anew. `freed`: media that left the engine's cache."""
        self._here.difference_update(name for name in freed if name not in self._loads)
        step = EncoderStep(self._loads, sorted(self._publish & self._here))
        self._loads, self._promised, self._publish = {}, {}, set()
        return step

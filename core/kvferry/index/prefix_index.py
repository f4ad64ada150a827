"""What each engine has of a prompt in its own cache: the chain index, fed with the engines' events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvferry.index._arrays import tokens_array
from kvferry.index.chain_index import ChainIndex
from kvferry.index.engine_events import EngineBlocks, EventKeys


class PrefixIndex:
    """The caches of several engines, by name. Thread-safe for one feeding thread and any number of askers."""

    def __init__(self, names: Sequence[str]) -> None:
        self._keys = EventKeys()
        self._index = ChainIndex(max(len(names), 1))
        self.engines = {
            name: EngineBlocks(self._index, number, self._keys) for number, name in enumerate(names)
        }

    def hits(self, tokens: Any, *, model: str = "", salt: str = "") -> dict[str, int]:
        """Return how many of a prompt's first tokens each engine would not have to compute.

        `model`: the name that the request asks for; where an engine knows it as an adapter, the adapter's
        blocks count. An engine always computes the last token, so a hit ends before it. With sliding-window
        or state-space layers the engine's own hit may be shorter: of them only the full attention counts.
        """
        array = tokens_array(tokens)
        found: dict[tuple[str, int, int], Any] = {}
        hits = {}
        for number, (name, engine) in enumerate(self.engines.items()):
            lora = model if model in engine.adapters else ""
            groups = engine.groups
            lengths = [0] if not groups else [len(array) - 1]
            for group, size in groups.items():
                asked = (lora, group, size)
                if asked not in found:
                    space = self._keys.space(lora=lora, salt=salt, group=group, block_tokens=size)
                    found[asked] = self._index.match(space.keys(array[: max(len(array) - 1, 0)]))
                lengths.append(int(found[asked][number]) * size)
            hits[name] = max(min(lengths), 0)
        return hits

    def blocks(self) -> dict[str, int]:
        """Return how many blocks of each engine are known."""
        counts = self._index.stats().held
        return {name: int(counts[number]) for number, name in enumerate(self.engines)}

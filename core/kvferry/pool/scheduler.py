"""The scheduler's side of the pool: what of a prompt to load, which blocks to save, which of them to hold.

For an engine's loop: nothing here blocks for longer than `lookup.GRACE_S`. An engine names the tokens up to
the end of each block by a hash of its own; from these the keys are made. A request's blocks are saved in the
step that fills them, and held, so that the engine does not use them for something else, until all workers
have reported the save.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from kvferry.pool.jobs import BlockSpan, LoadJob, PoolOrders, SaveJob
from kvferry.pool.keys import GroupShape, PoolKeys
from kvferry.pool.lookup import Lookups, first_block

NULL_BLOCK = 0  # stands in for blocks that a sliding window has left behind


class _Chain:
    """The blocks of a request."""

    def __init__(self, groups: int) -> None:
        self.keys: list[list[bytes]] = [[] for _ in range(groups)]
        self.saved = [0] * groups  # blocks that are in the pool, or on their way
        self.failed = False  # a load failed: the pool is not asked again
        self.loading = False


class PoolScheduler:
    """One per engine core. Not thread-safe: it belongs to the core's loop.

    All workers must report each save job. `max_held`: how many blocks may be held for saves at a time; what
    goes beyond is saved after later steps of its request, if there are any.
    """

    def __init__(self, keys: PoolKeys, lookups: Lookups, *, max_held: int, node: str = "") -> None:
        self._keys = keys
        self._lookups = lookups
        self._max_held = max_held
        self._node = node
        self._hold: Callable[[Sequence[int]], None] = lambda _: None
        self._release: Callable[[Sequence[int]], None] = lambda _: None
        self._chains: dict[str, _Chain] = {}
        self.due: dict[str, int] = {}
        """By request: with how many tokens there is something to save; `computed` does nothing before."""
        self._held: dict[int, tuple[list[int], int, list[bytes]]] = {}  # blocks, workers to report, keys
        self._held_blocks = 0
        self._saving: set[bytes] = set()
        self._next_job = 1
        self._counts: Counter[str] = Counter()
        self._reset_orders()

    def bind(
        self,
        hold: Callable[[Sequence[int]], None],
        release: Callable[[Sequence[int]], None],
        *,
        max_held: int,
    ) -> None:
        """Take what keeps blocks from being used for something else, and gives them free again."""
        self._hold, self._release, self._max_held = hold, release, max_held

    def arrived(self, request_id: str, hashes: Sequence[bytes]) -> None:
        """Begin to ask the pool for a request's prompt; `hashes` are the engine's."""
        chain = self._chains[request_id] = _Chain(len(self._keys.groups))
        self._set_due(request_id, chain)
        self._extend(chain, hashes)
        self._lookups.ask(request_id, chain.keys)

    def matched(self, request_id: str, hashes: Sequence[bytes]) -> int | None:
        """Return how many of the request's first tokens the pool holds; None: ask again later."""
        chain = self._chains.get(request_id)
        if chain is None or chain.failed:
            return 0
        if not self._lookups.asked(request_id):  # it was loaded, preempted, and is asked for anew
            self._extend(chain, hashes)
            self._lookups.ask(request_id, chain.keys)
        tokens = self._lookups.answer(request_id).tokens
        for group, shape in enumerate(self._keys.groups):
            chain.saved[group] = max(chain.saved[group], (tokens or 0) // shape.block_tokens)
        self._set_due(request_id, chain)
        return tokens

    def pause(self) -> None:
        """For a step that computes nothing: wait a moment for answers, if requests wait for any."""
        self._lookups.pause()

    def load(
        self, request_id: str, first_token: int, num_tokens: int, block_ids: Sequence[Sequence[int]]
    ) -> None:
        """Order a load of tokens that `matched` has found; `block_ids` has all blocks, by group."""
        chain = self._chains[request_id]
        spans = []
        for group, shape in enumerate(self._keys.groups):
            end_token = first_token + num_tokens
            first = max(first_token // shape.block_tokens, first_block(end_token, shape))
            wanted = range(first, end_token // shape.block_tokens)
            spans.append(_span(group, chain.keys[group], block_ids[group], wanted))
        self._loads.append(LoadJob(request_id, tuple(span for span in spans if span.keys)))
        chain.loading = True
        self._lookups.forget(request_id)

    def loads_ended(self, received: set[str], failed: set[str]) -> None:
        """Take note of ended loads; what failed is computed, and saved again if it is gone."""
        for request_id in received:
            chain = self._chains.get(request_id)
            if chain is not None:
                chain.loading = False
                if request_id in failed:
                    chain.failed, chain.saved = True, [0] * len(chain.saved)
                    self._set_due(request_id, chain)

    def computed(
        self,
        request_id: str,
        hashes: Sequence[bytes],
        num_tokens: int,
        block_ids: Callable[[], Sequence[Sequence[int]]],
    ) -> None:
        """Save the blocks that are full after this step, in which the request gets to `num_tokens`.

        Where they are too many to be held: the first ones now, the others after later steps."""
        chain = self._chains.get(request_id)
        if chain is None or num_tokens < self.due[request_id]:
            return
        full = self._affordable(chain, hashes, num_tokens)
        if all(end <= begin for end, begin in zip(full, chain.saved, strict=True)):
            return
        self._extend(chain, hashes)
        ids = block_ids()
        spans = []
        for group, end in enumerate(full):
            keys = chain.keys[group]
            wanted = [index for index in range(chain.saved[group], end) if keys[index] not in self._saving]
            spans.append(_span(group, keys, ids[group], wanted))
        chain.saved = [max(end, begin) for end, begin in zip(full, chain.saved, strict=True)]
        self._set_due(request_id, chain)
        self._save(tuple(span for span in spans if span.keys))

    def finished(self, request_id: str, hashes: Sequence[bytes] = (), num_tokens: int = 0) -> None:
        """Forget a request. Its saves go on."""
        self._lookups.forget(request_id)
        chain = self._chains.pop(request_id, None)
        if chain is None:
            return
        del self.due[request_id]
        if chain.loading:
            self._cancels.append(request_id)
        for shape, saved in zip(self._keys.groups, chain.saved, strict=True):
            left = self._full_blocks(shape, hashes, num_tokens) - saved
            self._counts["saved_blocks|skipped"] += max(0, left)

    def saves_ended(self, ended: Mapping[int, int]) -> None:
        """Take note of save jobs, with how many workers reported each. Unknown ones are fine."""
        for job_id, count in ended.items():
            found = self._held.pop(job_id, None)
            if found is None:
                continue
            block_ids, workers, keys = found
            if workers > count:
                self._held[job_id] = (block_ids, workers - count, keys)
                continue
            self._saving.difference_update(keys)
            self._held_blocks -= len(block_ids)
            self._release(block_ids)

    @property
    def saves_pending(self) -> bool:
        """Whether blocks are held for saves: the engine must go on stepping to hear of their end."""
        return bool(self._held)

    def forget_saved(self) -> None:
        """Take it that the pool is empty now."""
        for request_id, chain in self._chains.items():
            chain.saved = [0] * len(chain.saved)
            self._set_due(request_id, chain)

    def take_orders(self) -> PoolOrders:
        """Return this step's orders and begin anew."""
        orders = PoolOrders(
            self._node, self._keys.tag, tuple(self._loads), tuple(self._saves), tuple(self._cancels)
        )
        self._reset_orders()
        return orders

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call, as `metric|label`."""
        asked = self._lookups.take_counts()
        if not asked and not self._counts:
            return {}
        counts, self._counts = self._counts, Counter()
        counts.update(asked)
        return {name: count for name, count in counts.items() if count}

    def _reset_orders(self) -> None:
        self._loads: list[LoadJob] = []
        self._saves: list[SaveJob] = []
        self._cancels: list[str] = []

    def _extend(self, chain: _Chain, hashes: Sequence[bytes]) -> None:
        for group, known in enumerate(chain.keys):
            known.extend(self._keys.of_blocks(group, hashes, first=len(known)))

    def _set_due(self, request_id: str, chain: _Chain) -> None:
        pairs = zip(self._keys.groups, chain.saved, strict=True)
        self.due[request_id] = min((saved + 1) * shape.block_tokens for shape, saved in pairs)

    def _affordable(self, chain: _Chain, hashes: Sequence[bytes], num_tokens: int) -> list[int]:
        """Return up to which block of each group to save: to the last full one, or where the most tokens end
        that may be held."""

        def ends(tokens: int) -> list[int]:
            return [self._full_blocks(shape, hashes, tokens) for shape in self._keys.groups]

        def new_blocks(tokens: int) -> int:
            pairs = zip(ends(tokens), chain.saved, strict=True)
            return sum(max(0, end - begin) for end, begin in pairs)

        room = self._max_held - self._held_blocks
        if room <= 0:
            return list(chain.saved)
        if new_blocks(num_tokens) > room:
            num_tokens = bisect.bisect_right(range(num_tokens), room, key=new_blocks) - 1
        return ends(num_tokens)

    @staticmethod
    def _full_blocks(shape: GroupShape, hashes: Sequence[bytes], num_tokens: int) -> int:
        return min(num_tokens // shape.block_tokens, len(hashes) // shape.hashes_per_block)

    def _save(self, spans: tuple[BlockSpan, ...]) -> None:
        if not spans:
            return
        block_ids = list({block_id: None for span in spans for block_id in span.block_ids})
        keys = [key for span in spans for key in span.keys]
        self._hold(block_ids)
        self._held[self._next_job] = (block_ids, self._keys.ranks, keys)
        self._held_blocks += len(block_ids)
        self._saving.update(keys)
        self._saves.append(SaveJob(self._next_job, spans))
        self._next_job += 1


def _span(group: int, keys: Sequence[bytes], block_ids: Sequence[int], wanted: Iterable[int]) -> BlockSpan:
    """Return the blocks of a chain with these indices, those left out that a window has left behind."""
    kept = [index for index in wanted if block_ids[index] != NULL_BLOCK]
    return BlockSpan(
        group,
        tuple(keys[index] for index in kept),
        tuple(block_ids[index] for index in kept),
        tuple(keys[index - 1] if index else b"" for index in kept),
    )

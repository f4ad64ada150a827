"""Asking the pool how much of a prompt it holds, without an engine's loop waiting for the answer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvferry.errors import DeadlineExceededError, KVFerryError
from kvferry.handoff import WarningThrottle
from kvferry.pool.keys import GroupShape, names_of

logger = logging.getLogger(__name__)

# How long `answer` waits, once, and `pause`: a node of this machine answers in a few microseconds.
GRACE_S = 0.002


class _Question:
    def __init__(self, keys: Sequence[Sequence[bytes]], deadline: float) -> None:
        self.keys = keys
        self.deadline = deadline
        self.done = threading.Event()
        self.tokens = 0
        self.asked_before = False
        self.late = False


class Answer(NamedTuple):
    """`tokens` None: ask again later."""

    tokens: int | None


class Lookups:
    """Questions of one engine, by request id. Thread-safe; nothing blocks for longer than `GRACE_S`.

    `submit` runs a job on another thread. `store` returns the store, or raises `KVFerryError`. A question
    without an answer after `timeout_s` counts as "nothing there". `local` returns the store if this machine
    alone can answer, so that asking takes microseconds and no thread is needed, else None.
    """

    def __init__(
        self,
        store: Callable[[], Any],
        groups: Sequence[GroupShape],
        *,
        ranks: int,
        submit: Callable[[Callable[[], None]], bool],
        timeout_s: float,
        local: Callable[[], Any] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._groups = tuple(groups)
        self._ranks = tuple(range(ranks))
        self._submit = submit
        self._local = local
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._questions: dict[str, _Question] = {}
        self._counts: Counter[str] = Counter()
        self._warnings = WarningThrottle(clock=clock)

    def ask(self, request_id: str, keys: Sequence[Sequence[bytes]]) -> None:
        """Start to ask, once more if asked before; `keys`: those of the request's whole blocks, by group."""
        question = _Question(keys, self._clock() + self._timeout_s)
        with self._lock:
            self._questions[request_id] = question
        store = self._local() if any(keys) else None
        if store is not None and self._find(question, lambda: store, GRACE_S):
            return
        if not any(keys) or not self._submit(lambda: self._run(question)):
            question.done.set()

    def asked(self, request_id: str) -> bool:
        """Whether the request's question has been put and not been forgotten."""
        with self._lock:
            return request_id in self._questions

    def answer(self, request_id: str) -> Answer:
        """Return how many tokens of the prompt the pool holds, from the first one on."""
        with self._lock:
            question = self._questions.get(request_id)
        if question is None:
            return Answer(0)
        if question.late:
            return Answer(0)
        if question.done.wait(0.0 if question.asked_before else GRACE_S):
            return Answer(question.tokens)
        question.asked_before = True
        if self._clock() < question.deadline:
            return Answer(None)
        with self._lock:
            if not question.late:
                question.late = True
                self._counts["lookups|late"] += 1
        return Answer(0)

    def pause(self) -> None:
        """For an engine that has nothing to do but to ask again: wait a moment for any of the answers that
        `answer` could not give yet. Returns at once if there is none."""
        with self._settled:
            open_ones = [each for each in self._questions.values() if each.asked_before and not each.late]
            if open_ones and not any(each.done.is_set() for each in open_ones):
                self._settled.wait(GRACE_S)

    def forget(self, request_id: str) -> None:
        """Forget a question; unknown ones are fine."""
        with self._lock:
            self._questions.pop(request_id, None)

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call: lookups|hit, miss, late, failed."""
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
            return counts

    def _run(self, question: _Question) -> None:
        if not self._find(question, self._store, question.deadline - self._clock()):
            self._settle(question, "late")

    def _find(self, question: _Question, store: Callable[[], Any], timeout_s: float) -> bool:
        """Ask; False if there was no time for an answer."""
        outcome = "failed"
        try:
            if timeout_s <= 0:
                return False
            question.tokens = longest_hit(
                store(), self._groups, question.keys, self._ranks, timeout_s=timeout_s
            )
            outcome = "hit" if question.tokens else "miss"
        except DeadlineExceededError:
            return False
        except KVFerryError as error:
            logger.log(self._warnings.level(error.code), "the pool could not be asked: %s", error)
        self._settle(question, outcome)
        return True

    def _settle(self, question: _Question, outcome: str) -> None:
        with self._settled:
            if not question.late:
                self._counts[f"lookups|{outcome}"] += 1
            question.done.set()
            self._settled.notify_all()


def longest_hit(
    store: Any,
    groups: Sequence[GroupShape],
    keys: Sequence[Sequence[bytes]],
    ranks: Sequence[int],
    *,
    timeout_s: float,
) -> int:
    """Return how many first tokens of a prompt can be loaded: every group has what a token after them looks
    at, at all ranks. Where ends of blocks are open, the last block that is there only vouches for the one
    before it.

    One call for each group: the whole chain where all tokens are looked at, the blocks below that otherwise.
    """
    tokens = min(len(group_keys) * shape.block_tokens for group_keys, shape in zip(keys, groups, strict=True))
    step = math.lcm(*(shape.block_tokens for shape in groups))  # tokens, in whole blocks of every group
    windows = []
    for group_keys, shape in sorted(zip(keys, groups, strict=True), key=lambda pair: pair[1].window_tokens):
        tokens -= tokens % step
        wanted = group_keys[: tokens // shape.block_tokens]
        if not wanted:
            return 0
        names = names_of(wanted, ranks)
        if shape.window_tokens:
            held = store.exists_many(names, timeout_s=timeout_s).reshape(-1, len(ranks)).all(axis=1)
            windows.append((held, shape))
        else:
            found = store.match_prefix(names, timeout_s=timeout_s) // len(ranks)
            tokens = min(tokens, found * shape.block_tokens)
    tokens -= tokens % step
    if tokens and any(shape.open_end for shape in groups):
        tokens -= step
    return _down_to_windows(tokens, step, windows)


def _down_to_windows(tokens: int, step: int, windows: Sequence[tuple[np.ndarray, GroupShape]]) -> int:
    """Return the largest number of tokens, a multiple of `step`, before which all windows are held."""
    while tokens > 0 and not all(_holds_window(tokens, held, shape) for held, shape in windows):
        tokens -= step
    return tokens


def _holds_window(tokens: int, held: np.ndarray, shape: GroupShape) -> bool:
    return bool(held[first_block(tokens, shape) : tokens // shape.block_tokens].all())


def first_block(tokens: int, shape: GroupShape) -> int:
    """Return the first block that a token after the first `tokens` looks at."""
    if not shape.window_tokens:
        return 0
    return max(0, tokens - shape.window_tokens + 1) // shape.block_tokens

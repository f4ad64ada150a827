from __future__ import annotations

import threading

import numpy as np
import pytest

from _pool import BLOCK, Later, at_once, hashes, keys
from kvferry.errors import DeadlineExceededError, UnavailableError
from kvferry.pool import GroupShape, Lookups, longest_hit, names_of
from kvferry.pool.lookup import first_block
from kvferry.store import Runs
from kvferry.testing.fake_store import FakeStore

HASHES = hashes(range(40))
FULL = GroupShape(BLOCK)
WINDOW = GroupShape(BLOCK, window_tokens=8)


def put(store: FakeStore, made: list[bytes], ranks: list[int] | None = None) -> None:
    names = names_of(made, ranks or [0])
    empty = np.zeros(0, np.uint64)
    store.put_runs(names, Runs(empty, empty, np.zeros(len(names), np.int64), []), parents=[b""] * len(names))


class TestLongestHit:
    def hit(self, store, shapes, made, ranks=(0,)):
        return longest_hit(store, shapes, made, ranks, timeout_s=1.0)

    def test_one_call_for_a_chain_of_all_ranks(self):
        store, made = FakeStore(), keys(ranks=2).of_blocks(0, HASHES)
        put(store, made[:6], [0, 1])
        put(store, made[6:8], [0])
        assert self.hit(store, [FULL], [made], (0, 1)) == 6 * BLOCK
        assert self.hit(store, [FULL], [made], (0,)) == 8 * BLOCK
        assert store.calls["match_prefix"] == 2

    def test_it_ends_where_blocks_of_all_groups_end(self):
        shapes = [GroupShape(BLOCK), GroupShape(2 * BLOCK, 2), GroupShape(3 * BLOCK, 3)]
        store, all_keys = FakeStore(), keys(*shapes)
        made = [all_keys.of_blocks(group, HASHES[:9]) for group in range(3)]
        for group_keys in made:
            put(store, group_keys)
        assert self.hit(store, shapes, made) == 6 * BLOCK

    def test_a_hole_ends_it(self):
        store, made = FakeStore(), keys().of_blocks(0, HASHES)
        put(store, made[:3] + made[4:])
        assert self.hit(store, [FULL], [made]) == 3 * BLOCK

    def test_a_window_needs_its_last_blocks_only(self):
        store, both = FakeStore(), keys(FULL, WINDOW)
        made = [both.of_blocks(group, HASHES) for group in (0, 1)]
        put(store, made[0][:7])
        assert self.hit(store, [FULL, WINDOW], made) == 0
        put(store, made[1][3:6])  # a token after 6 blocks looks at 8 tokens: itself and 7 before it
        assert self.hit(store, [FULL, WINDOW], made) == 6 * BLOCK
        assert self.hit(store, [WINDOW, FULL], made[::-1]) == 6 * BLOCK
        put(store, [made[1][6]])
        assert self.hit(store, [FULL, WINDOW], made) == 7 * BLOCK

    def test_groups_of_different_blocks_meet_at_a_common_end(self):
        store, coarse = FakeStore(), GroupShape(2 * BLOCK, hashes_per_block=2)
        both = keys(FULL, coarse)
        made = [both.of_blocks(group, HASHES) for group in (0, 1)]
        put(store, made[0][:7] + made[1])
        assert self.hit(store, [FULL, coarse], made) == 6 * BLOCK

    def test_where_ends_are_open_the_last_block_is_left_out(self):
        store, shapes = FakeStore(), [FULL._replace(open_end=True), WINDOW._replace(open_end=True)]
        both = keys(*shapes)
        made = [both.of_blocks(group, HASHES) for group in (0, 1)]
        put(store, made[0][:7] + made[1][3:7])
        assert self.hit(store, shapes, made) == 6 * BLOCK
        assert self.hit(store, shapes[:1], made[:1]) == 6 * BLOCK
        assert self.hit(store, shapes[:1], [made[0][:1]]) == 0

    def test_nothing_to_ask_for(self):
        store = FakeStore()
        assert self.hit(store, [FULL], [[]]) == 0
        assert not store.calls

    def test_first_block(self):
        assert [first_block(tokens, WINDOW) for tokens in (0, 7, 8, 11, 12, 24)] == [0, 0, 0, 1, 1, 4]
        assert first_block(24, FULL) == 0


def lookups(store, submit, clock=None, timeout_s=5.0):
    options = {} if clock is None else {"clock": clock}
    return Lookups(lambda: store, [FULL], ranks=1, submit=submit, timeout_s=timeout_s, **options)


class TestLookups:
    def test_an_answer_that_is_there_at_once(self):
        store, made = FakeStore(), keys().of_blocks(0, HASHES)
        put(store, made[:2])
        asked = lookups(store, at_once)
        asked.ask("r", [made])
        assert asked.answer("r").tokens == asked.answer("r").tokens == 2 * BLOCK
        asked.forget("r")
        assert asked.answer("r").tokens == 0
        assert asked.take_counts() == {"lookups|hit": 1}

    def test_later_then_the_answer(self):
        store, made, later = FakeStore(), keys().of_blocks(0, HASHES), Later()
        put(store, made[:2])
        asked = lookups(store, later.submit)
        asked.ask("r", [made])
        assert asked.answer("r").tokens is None
        later.run()
        assert asked.answer("r").tokens == 2 * BLOCK

    def test_a_pause_ends_with_any_answer(self, monkeypatch):
        monkeypatch.setattr("kvferry.pool.lookup.GRACE_S", 0.0)
        store, made, later = FakeStore(), keys().of_blocks(0, HASHES), Later()
        asked = lookups(store, later.submit, timeout_s=600.0)
        asked.pause()  # nobody waits
        for name in ("r", "s"):
            asked.ask(name, [made])
        asked.pause()  # nobody has asked for the answer
        monkeypatch.setattr("kvferry.pool.lookup.GRACE_S", 1e-3)
        assert [asked.answer(name).tokens for name in ("r", "s")] == [None, None]
        asked.pause()  # for a moment only
        monkeypatch.setattr("kvferry.pool.lookup.GRACE_S", 600.0)
        timer = threading.Timer(0.05, later.run)
        timer.start()
        asked.pause()
        assert asked.answer("r").tokens == 0
        asked.pause()  # an answer is there to be taken
        asked.forget("r")
        timer.join(60.0)

    def test_asked_in_place_where_this_machine_alone_can_answer(self):
        store, made, later = FakeStore(), keys().of_blocks(0, HASHES), Later()
        put(store, made[:2])
        asked = Lookups(
            lambda: store, [FULL], ranks=1, submit=later.submit, timeout_s=5.0, local=lambda: store
        )
        asked.ask("r", [made])
        assert not later.jobs
        assert asked.answer("r").tokens == 2 * BLOCK
        store.down = DeadlineExceededError("slow")  # then a thread asks again, with more time
        asked.ask("s", [made])
        assert asked.answer("s").tokens is None
        store.down = None
        later.run()
        assert asked.answer("s").tokens == 2 * BLOCK
        store.down = UnavailableError("gone")
        asked.ask("t", [made])
        assert asked.answer("t").tokens == 0
        assert asked.take_counts() == {"lookups|hit": 2, "lookups|failed": 1}

    def test_too_late_counts_as_nothing_whatever_comes_then(self):
        store, made, later, now = FakeStore(), keys().of_blocks(0, HASHES), Later(), [0.0]
        put(store, made[:2])
        asked = lookups(store, later.submit, lambda: now[0])
        asked.ask("r", [made])
        assert asked.answer("r").tokens is None
        now[0] = 5.0
        assert asked.answer("r").tokens == 0
        later.run()
        assert asked.answer("r").tokens == 0
        assert asked.take_counts() == {"lookups|late": 1}

    def test_a_store_that_cannot_be_asked(self, caplog):
        store = FakeStore()
        store.down = UnavailableError("gone")
        asked = lookups(store, at_once)
        for number in range(5):
            asked.ask(f"r{number}", [keys().of_blocks(0, HASHES)])
            assert asked.answer(f"r{number}").tokens == 0
        assert asked.take_counts() == {"lookups|failed": 5}
        assert [record.levelname for record in caplog.records if record.levelno > 10] == ["WARNING"]

    def test_short_prompts_and_closed_executors(self):
        closed = Later()
        closed.closed = True
        asked = lookups(FakeStore(), closed.submit)
        asked.ask("short", [[]])
        asked.ask("r", [keys().of_blocks(0, HASHES)])
        assert asked.answer("short").tokens == asked.answer("r").tokens == asked.answer("unknown").tokens == 0

    def test_a_hanging_store_does_not_hold_the_engine_up(self):
        release = threading.Event()

        class Hanging(FakeStore):
            def match_prefix(self, names, *, timeout_s=None):
                assert release.wait(60)
                return super().match_prefix(names, timeout_s=timeout_s)

        def thread(job):
            threading.Thread(target=job, daemon=True).start()
            return True

        asked = lookups(Hanging(), thread, timeout_s=0.05)
        asked.ask("r", [keys().of_blocks(0, HASHES)])
        answers = {asked.answer("r").tokens}
        while None in answers:
            answers = {asked.answer("r").tokens}
        release.set()
        assert answers == {0}


@pytest.mark.parametrize("tokens", [1, 5, 39])
def test_whole_blocks_only(tokens: int) -> None:
    store, ends = FakeStore(), hashes(range(tokens))
    put(store, keys().of_blocks(0, HASHES))
    assert (
        longest_hit(store, [FULL], [keys().of_blocks(0, ends)], [0], timeout_s=1) == tokens // BLOCK * BLOCK
    )

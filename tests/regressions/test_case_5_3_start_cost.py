"""Case 5.3: making the pages of a big segment starves the answers to others."""

from __future__ import annotations

import threading
import time

import pytest

from _engines import engine_pair
from kvferry.errors import KVFerryError, ResourceExhaustedError

BIG = 384 << 20
LONGEST_ANSWER_S = 20.0  # generous: the field case saw minutes


def test_peers_are_answered_while_big_segments_are_made():
    with engine_pair() as pair:
        stop = threading.Event()
        answers = 0
        failures: list[KVFerryError] = []

        def probe() -> None:
            nonlocal answers
            while not stop.is_set() and not failures:
                try:
                    pair.peer.refresh(LONGEST_ANSWER_S)
                except KVFerryError as error:
                    failures.append(error)
                answers += 1
                time.sleep(0.002)

        prober = threading.Thread(target=probe)
        prober.start()
        try:
            for number in range(3):
                region = pair.server.allocate(BIG + number, name=f"big-{number}")
                assert region.memory[BIG - 1] == 0
                region.unregister()
        finally:
            stop.set()
            prober.join()
        assert not failures
        assert answers > 0


def test_a_segment_larger_than_the_machine_is_an_error_and_no_kill():
    with engine_pair() as pair:
        with pytest.raises(ResourceExhaustedError, match="bytes"):
            pair.server.allocate(1 << 46, name="absurd")
        assert pair.server.allocate(4096, name="modest").memory[0] == 0

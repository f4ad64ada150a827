"""The watch on etcd when its loop thread gets no processor: it goes on, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from kvferry.errors import CancelledError, UnavailableError
from kvferry.meta.etcd import gateway as gateway_module
from kvferry.meta.etcd.gateway import Gateway
from kvferry.meta.etcd.store import EtcdWatch
from kvferry.meta.store import Batch

NOWHERE = "http://127.0.0.1:9"  # nobody answers there
PATIENCE_S = 60.0


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setattr(gateway_module, "_BACKSTOP_S", 0.05)
    made = Gateway([NOWHERE])
    yield made
    made.close()


def hold_up(gateway: Gateway) -> threading.Event:
    """Keep the loop thread from running until the event is set."""
    held, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        held.set()
        go_on.wait(PATIENCE_S)

    gateway.soon(wait)
    assert held.wait(PATIENCE_S)
    return go_on


def test_a_loop_without_a_processor_ends_no_watch_and_loses_nothing(gateway: Gateway) -> None:
    watch = EtcdWatch(gateway, "p/")
    go_on = hold_up(gateway)
    batch = Batch((), resync=True)
    gateway.soon(lambda: watch._batches.put_nowait(batch))
    assert watch.next(0.01) is None
    assert watch.next(0.01) is None
    go_on.set()
    deadline = time.monotonic() + PATIENCE_S
    found = None
    while found is None and time.monotonic() < deadline:
        found = watch.next(0.5)
    assert found is batch
    watch.close()
    with pytest.raises(CancelledError):
        watch.next(0.5)


def test_a_call_that_the_loop_does_not_answer_fails(gateway: Gateway) -> None:
    go_on = hold_up(gateway)

    async def nothing() -> None:
        await asyncio.sleep(0)

    work: Coroutine[Any, Any, None] = nothing()
    with pytest.raises(UnavailableError, match="did not answer in time"):
        gateway.run(work, 0.01)
    go_on.set()


def test_a_watch_of_a_closed_store_says_so(gateway: Gateway) -> None:
    watch = EtcdWatch(gateway, "p/")
    gateway.close()
    with pytest.raises(CancelledError):
        watch.next(0.01)

"""Sessions by `host:port`, and memory by pointers: what the stand-in for Mooncake is made of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kvferry.errors import InvalidArgumentError, NotFoundError, OutOfRangeError, UnavailableError
from kvferry.testing.waiting import wait_until
from kvferry.transfer import SessionEngine, resolve_session

PAGE = 4096


@pytest.fixture
def pair() -> Iterator[tuple[SessionEngine, SessionEngine]]:
    near, far = SessionEngine(), SessionEngine()
    yield near, far
    far.close()
    near.close()


@pytest.mark.parametrize(
    ("session", "address"),
    [
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("localhost:80", "127.0.0.1:80"),
        ("[::1]:80", "[::1]:80"),
        ("127.0.0.1:80:npu_7", "127.0.0.1:80"),
    ],
)
def test_sessions_are_addresses(session: str, address: str) -> None:
    assert str(resolve_session(session)) == address


@pytest.mark.parametrize("session", ["", "host", ":1", "host:", "host:1:2", "host:123456", "::1:80"])
def test_other_text_is_no_session(session: str) -> None:
    with pytest.raises(InvalidArgumentError):
        resolve_session(session)


def test_lists_and_arrays_of_all_whole_numbers(pair: tuple[SessionEngine, SessionEngine]) -> None:
    near, far = pair
    source, target = near.allocate(PAGE), far.allocate(PAGE)
    near.view(source, PAGE)[:] = b"\7" * PAGE
    for kind in (list, tuple, np.array, lambda numbers: np.array(numbers, np.uint64)):
        transfer = near.move(far.session, "write", kind([source]), kind([target]), kind([8]))
        assert transfer.error is None
    assert bytes(far.view(target, 9)) == b"\7" * 8 + b"\0"


@pytest.mark.parametrize("wrong", [[-1], np.array([-1]), ["x"], np.array([1.5]), [None]])
def test_what_is_no_number(pair: tuple[SessionEngine, SessionEngine], wrong: object) -> None:
    near, far = pair
    with pytest.raises(InvalidArgumentError):
        near.move(far.session, "write", wrong, [1], [1])  # type: ignore[arg-type]


def test_lists_of_other_lengths(pair: tuple[SessionEngine, SessionEngine]) -> None:
    near, far = pair
    with pytest.raises(InvalidArgumentError, match="do not go together"):
        near.move(far.session, "write", [1, 2], [1], [1])


def test_registrations_do_not_overlap(pair: tuple[SessionEngine, SessionEngine]) -> None:
    near, _ = pair
    place = near.allocate(2 * PAGE)
    for start, length in ((place, PAGE), (place + PAGE, PAGE), (place - 1, 2), (place - 1, 3 * PAGE)):
        assert near.overlaps(start, length)
        with pytest.raises(InvalidArgumentError, match="overlap"):
            near.add(start, length)
    assert not near.overlaps(place - 1, 1)
    assert not near.overlaps(place + 2 * PAGE, 1)
    for start, length in ((0, 1), (place, 0), ((1 << 64) - 1, 1)):
        with pytest.raises(InvalidArgumentError, match="no memory"):
            near.add(start, length)


def test_what_was_freed_is_gone(pair: tuple[SessionEngine, SessionEngine]) -> None:
    near, far = pair
    place, target = near.allocate(10), far.allocate(10)
    assert near.move(far.session, "write", [place], [target], [10]).error is None
    near.free(place)
    with pytest.raises(NotFoundError):
        near.free(place)
    with pytest.raises(OutOfRangeError):
        near.view(place, 1)
    with pytest.raises(OutOfRangeError):
        near.move(far.session, "write", [place], [target], [10])
    far.free(target)
    again = near.allocate(10)
    with pytest.raises(OutOfRangeError):
        near.move(far.session, "write", [again], [target], [10])


def test_sessions_that_ended_are_forgotten(pair: tuple[SessionEngine, SessionEngine]) -> None:
    near, far = pair
    gone = SessionEngine()
    near.connect(gone.session)
    gone.close()
    wait_until(lambda: not near.is_connected(gone.session), 30.0)
    with pytest.raises(UnavailableError):
        near.connect(gone.session)
    near.connect(far.session)
    assert list(near._known) == [far.session]
    assert near.first_address(far.session) == 0

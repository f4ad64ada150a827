from __future__ import annotations

import numpy as np
import pytest

from _engines import pattern, wait_until
from kvferry.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
)
from kvferry.transfer import TransferEngine, TransferOptions


@pytest.fixture(params=["tcp", "shm"])
def pair(request):
    with TransferEngine(protocol=request.param) as owner, TransferEngine(protocol=request.param) as user:
        yield owner, user


def test_read_and_write_by_naming_source_and_destination(pair):
    owner, user = pair
    theirs, ours = pattern(8192), np.zeros(8192, np.uint8)
    owner.register_memory(theirs, name="cache")
    user.register_memory(ours)
    there = user.remote(str(owner.endpoint), "cache")
    user.wait(user.transfer(there, ours))
    assert (ours == theirs).all()
    ours[:] = 9
    user.wait(user.transfer(ours[100:200], there.at(1000), 50))
    assert (theirs[1000:1050] == 9).all()
    assert theirs[1050] == pattern(8192)[1050]


def test_protocol_is_the_only_transport_used(pair):
    owner, user = pair
    theirs, ours = pattern(64), bytearray(64)
    owner.register_memory(theirs, name="cache")
    user.register_memory(ours)
    transfer = user.transfer(user.remote(str(owner.endpoint), "cache"), ours)
    user.wait(transfer)
    assert transfer.transport == user.engine.options.transports[0]
    assert bytes(ours) == theirs.tobytes()


def test_batch_makes_one_transfer_for_each_peer_and_direction(pair):
    owner, user = pair
    with TransferEngine() as third:
        buffers = {name: np.full(256, value, np.uint8) for name, value in {"a": 1, "b": 2, "c": 3}.items()}
        owner.register_memory(buffers["a"], name="a")
        owner.register_memory(buffers["b"], name="b")
        third.register_memory(buffers["c"], name="c")
        ours = np.zeros((3, 256), np.uint8)
        user.register_memory(ours)
        a, b = (user.remote(str(owner.endpoint), name) for name in "ab")
        c = user.remote(str(third.endpoint), "c")
        transfers = user.batch_transfer([(a, ours[0], 256), (b, ours[1], 256), (c, ours[2], None)])
        assert len(transfers) == 2
        user.wait(transfers)
        assert ours[:, 0].tolist() == [1, 2, 3]
        ours[:] = 7
        both_ways = user.batch_transfer([(ours[0], a, 128), (b, ours[1], 256)])
        assert len(both_ways) == 2
        user.wait(both_ways)
        assert buffers["a"][127:129].tolist() == [7, 1]
        assert ours[1, 0] == 2


def test_regions_that_came_later_and_peers_that_were_lost_are_found_again():
    ours = np.zeros(64, np.uint8)
    with TransferEngine() as user:
        user.register_memory(ours)
        with TransferEngine() as owner:
            endpoint = str(owner.endpoint)
            with pytest.raises(NotFoundError, match="late"):
                user.remote(endpoint, "late")
            late = pattern(64)
            owner.register_memory(late, name="late")
            user.wait(user.transfer(user.remote(endpoint, "late"), ours))
            first = user.remote(endpoint, "late").peer
        with TransferEngine(options=TransferOptions(bind=endpoint)) as again:
            again.register_memory(late, name="late")
            wait_until(lambda: not first.alive, what="the loss of the first engine to be noticed")
            remote = user.remote(endpoint, "late")
            assert remote.peer.node_id == again.engine.node_id


def test_mistakes_are_named(pair):
    owner, user = pair
    theirs, ours = pattern(64), np.zeros(64, np.uint8)
    owner.register_memory(theirs, name="cache", access="r")
    there = user.remote(str(owner.endpoint), "cache")
    with pytest.raises(InvalidArgumentError, match="register_memory first"):
        user.transfer(there, ours)
    region = user.register_memory(ours)
    with pytest.raises(InvalidArgumentError, match="Remote"):
        user.transfer(ours, ours)
    with pytest.raises(InvalidArgumentError, match="Remote"):
        user.transfer(there, there)
    with pytest.raises(InvalidArgumentError, match="65"):
        user.transfer(there, ours, 65)
    with pytest.raises(TypeError):
        user.transfer(there, ours, 1.5)
    with pytest.raises(InvalidArgumentError, match="leaves region 'cache'"):
        there.at(65)
    with pytest.raises(OutOfRangeError):
        user.transfer(there.at(32), ours, 64)
    with pytest.raises(AccessDeniedError):
        user.transfer(ours, there)
    user.unregister_memory(region)
    with pytest.raises(InvalidArgumentError, match="register_memory first"):
        user.transfer(there, ours)


def test_memory_registered_twice_goes_with_the_second_unregistering(pair):
    owner, user = pair
    theirs, ours = pattern(64), np.zeros(64, np.uint8)
    owner.register_memory(theirs, name="cache")
    region = user.register_memory(ours)
    assert user.register_memory(ours) is region
    assert user.register_memory(ours, access="r") is not region
    there = user.remote(str(owner.endpoint), "cache")
    user.unregister_memory(region)
    user.wait(user.transfer(there, ours))
    user.unregister_memory(region)
    assert not region.registered
    user.unregister_memory(region)
    again = user.register_memory(ours)
    assert again is not region
    again.unregister()  # past the convenience
    assert user.register_memory(ours) is not again


def test_wait_says_when_a_transfer_goes_on():
    options = TransferOptions(transports=("tcp",), fault_plan="*:delay=2000")
    theirs, ours = pattern(64), np.zeros(64, np.uint8)
    with TransferEngine() as owner, TransferEngine(options=options) as user:
        owner.register_memory(theirs, name="cache")
        user.register_memory(ours)
        transfer = user.transfer(user.remote(str(owner.endpoint), "cache"), ours)
        with pytest.raises(DeadlineExceededError, match="goes on"):
            user.wait(transfer, timeout_s=0.05)
        user.wait(transfer)
        assert (ours == theirs).all()

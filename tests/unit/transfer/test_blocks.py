from __future__ import annotations

import numpy as np
import pytest

from _engines import engine_pair, pattern
from kvferry.errors import InvalidArgumentError, NotFoundError, OutOfRangeError
from kvferry.transfer import BlockList

BLOCK, STRIDE, COUNT, LAYERS = 4096, 6144, 64, 3
SIZE = STRIDE * COUNT * LAYERS


@pytest.fixture(params=["tcp", "shm"])
def wired(request):
    """(pair, local array, remote array, block lists of here, of there), the lists one for each layer."""
    with engine_pair(request.param) as pair:
        far, near = pattern(SIZE, 1), np.zeros(SIZE, dtype=np.uint8)
        there = pair.server.register(far, name="m", access="rw")
        here = pair.client.register(near, name="m", access="rw")
        pair.peer.refresh()
        yield pair, near, far, layers_of(here.id), layers_of(there.id)


def layers_of(region):
    return [BlockList(region, layer * STRIDE * COUNT, BLOCK, STRIDE, COUNT) for layer in range(LAYERS)]


def blocks_of(array, layer):
    """One layer of an array as [COUNT, BLOCK]."""
    return array.reshape(LAYERS, COUNT, STRIDE)[layer, :, :BLOCK]


def test_blocks_are_moved_by_index_in_every_layer(wired):
    pair, near, far, here, there = wired
    rng = np.random.default_rng(7)
    local = rng.permutation(COUNT)[:40].astype(np.int32)
    remote = rng.permutation(COUNT)[:40].astype(np.int32)
    plan = pair.client.prepare_blocks(
        pair.peer, "read", local=here, remote=there, local_index=local, remote_index=remote
    )
    assert (plan.pieces, plan.bytes) == (40 * LAYERS, 40 * LAYERS * BLOCK)
    pair.client.execute(plan).raise_if_failed()
    untouched = np.setdiff1d(np.arange(COUNT), local)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(blocks_of(near, layer)[local], blocks_of(far, layer)[remote])
        assert not blocks_of(near, layer)[untouched].any()
    assert not near.reshape(-1, STRIDE)[:, BLOCK:].any(), "the gaps between blocks"


def test_one_list_needs_no_sequence_and_writes_too(wired):
    pair, near, far, here, there = wired
    near[:] = pattern(SIZE, 2)
    index = np.array([3, 4, 5], dtype=np.int32)
    plan = pair.client.prepare_blocks(
        pair.peer, "write", local=here[0], remote=there[0], local_index=index, remote_index=index[::-1].copy()
    )
    pair.client.execute(plan).raise_if_failed()
    np.testing.assert_array_equal(blocks_of(far, 0)[[5, 4, 3]], blocks_of(near, 0)[3:6])


def test_piece_errors_are_by_list_and_index():
    with engine_pair("shm") as pair:
        near = pair.client.register(bytearray(SIZE), name="near", access="rw")
        gone = pair.server.register(bytearray(SIZE), name="gone")
        kept = pair.server.register(bytearray(SIZE), name="kept")
        pair.peer.refresh()
        index = np.array([9, 1], dtype=np.int32)
        plan = pair.client.prepare_blocks(
            pair.peer, "read",
            local=[BlockList(near.id, at, BLOCK, BLOCK, 16) for at in (0, 65536)],
            remote=[BlockList(region.id, 0, BLOCK, BLOCK, 16) for region in (gone, kept)],
            local_index=index, remote_index=index,
        )  # fmt: skip
        gone.unregister()
        errors = pair.client.execute(plan).piece_errors
    assert [error is None for error in errors] == [False, False, True, True]


def test_what_cannot_be_is_refused(wired):
    pair, _near, _far, here, there = wired
    index = np.zeros(2, dtype=np.int32)

    def prepare(**changed):
        given = {"local": here, "remote": there, "local_index": index, "remote_index": index} | changed
        return pair.client.prepare_blocks(pair.peer, "read", **given)

    assert prepare().pieces == 2 * LAYERS
    with pytest.raises(OutOfRangeError, match="local index 1 is 64"):
        prepare(local_index=np.array([0, COUNT], dtype=np.int32))
    with pytest.raises(OutOfRangeError, match="remote index 0 is -1"):
        prepare(remote_index=np.array([-1, 0], dtype=np.int32))
    with pytest.raises(OutOfRangeError, match="remote region"):
        prepare(remote=[BlockList(there[0].region, 0, BLOCK, STRIDE, COUNT * LAYERS + 1)] * LAYERS)
    with pytest.raises(NotFoundError):
        prepare(local=[BlockList(999, 0, BLOCK, STRIDE, COUNT)] * LAYERS)
    with pytest.raises(InvalidArgumentError, match="give pairs"):
        prepare(remote=there[:1])
    with pytest.raises(InvalidArgumentError, match="give pairs"):
        prepare(remote_index=index[:1].copy())
    with pytest.raises(InvalidArgumentError, match="int32"):
        prepare(local_index=np.zeros(2, dtype=np.int64))
    with pytest.raises(InvalidArgumentError, match="gaps"):
        prepare(local_index=np.zeros(4, dtype=np.int32)[::2])
    with pytest.raises(InvalidArgumentError, match="dimensions"):
        prepare(local_index=index.reshape(1, 2))


def test_read_only_memory_is_no_target():
    with engine_pair("shm") as pair:
        here = pair.client.register(bytes(BLOCK), name="constant")
        there = pair.server.register(bytearray(BLOCK), name="m")
        pair.peer.refresh()
        index = np.zeros(1, dtype=np.int32)
        lists = [BlockList(region.id, 0, BLOCK, BLOCK, 1) for region in (here, there)]
        with pytest.raises(InvalidArgumentError, match="read-only"):
            pair.client.prepare_blocks(
                pair.peer, "read", local=lists[0], remote=lists[1], local_index=index, remote_index=index
            )

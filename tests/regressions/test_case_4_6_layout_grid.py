"""Case 4.6: layout forced by the connector differs from what the attention backend uses (permuted heads)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import _kvgrid as kvgrid
from _engines import engine_pair, move
from _ranks import Engine, Setup, Shape, transfer
from kvferry.errors import GeometryMismatchError
from kvferry.layout import check_compatible, map_blocks

TOKENS = 128
REFUSAL = r"^(dtype|kv_heads): ours \w+, theirs \w+; "


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_element_of_the_grid_arrives_where_it_belongs(transport):
    pairs = 0
    with engine_pair(transport) as pair:
        for ours, theirs in kvgrid.grid():
            check_compatible(ours, theirs)
            rng = np.random.default_rng(pairs)
            blocks = ours.groups[0].num_blocks
            near_blocks = rng.permutation(blocks)[: TOKENS // ours.block_size]
            far_blocks = rng.permutation(blocks)[: TOKENS // theirs.block_size]
            near, far = kvgrid.empty_cache(ours), kvgrid.empty_cache(theirs)
            kvgrid.fill(theirs, far, far_blocks)
            names = ours.groups[0].layer_names
            there = [pair.server.register(flat, name=n) for n, flat in zip(names, far, strict=True)]
            here = [pair.client.register(flat, name=n) for n, flat in zip(names, near, strict=True)]
            pair.peer.refresh()
            rows = map_blocks(
                ours,
                theirs,
                [near_blocks],
                [far_blocks],
                local_regions={region.name: region.id for region in here},
                remote_regions={info.name: info.id for info in pair.peer.regions},
            )
            assert move(pair.client, pair.peer, rows).error is None
            for layer, flat in enumerate(near):
                np.testing.assert_array_equal(
                    kvgrid.gather(ours, flat, near_blocks),
                    kvgrid.expected(ours, layer, np.arange(TOKENS)),
                    err_msg=f"{ours} <- {theirs}",
                )
            for region in [*here, *there]:
                region.unregister()
            pairs += 1
    assert pairs == 3 * 3 * 4 * 9


@pytest.mark.parametrize(("ours", "theirs"), list(itertools.product((1, 2, 4, 8), repeat=2)))
def test_every_element_arrives_whatever_the_tensor_parallel_sizes(ours, theirs):
    """Heads of 1, 2 and 8; layouts and block sizes take turns, so that all of their pairs occur."""
    turns = itertools.product(("LBNHC", "LBHNC"), ("LBNHC", "LBHNC"), (16, 32, 64), (16, 32, 64))
    pairs = list(turns)[ours + 4 * theirs :: 5]
    for index, (near_form, far_form, near_size, far_size) in enumerate(pairs):
        shapes = (Shape("full", 2, (1, 2, 8)[index % 3]),)
        dtype = ("bfloat16", "fp8_e4m3")[index % 2]
        near = Engine(shapes, Setup(ours, (0,), near_size, near_form, dtype))
        far = Engine(shapes, Setup(theirs, (0,), far_size, far_form, dtype))
        rng = np.random.default_rng(index)
        blocks = [[rng.permutation(np.arange(1, 24))[: TOKENS // size]] for size in (near_size, far_size)]
        far.write(blocks[1], TOKENS)
        transfer(near, far, (blocks[0], blocks[1]), 0, TOKENS)
        for rank, name, where, values in near.cells(blocks[0], TOKENS):
            np.testing.assert_array_equal(
                near.read(rank, name, where), values, err_msg=f"{near.setup} <- {far.setup}"
            )


def test_every_other_pair_is_refused_by_name():
    shapes = itertools.product(("NHD", "HND"), (16, 24, 32), (1, 2), ("bfloat16", "fp8_e4m3"))
    every = [kvgrid.geometry(*shape) for shape in shapes]
    refused = 0
    for ours in every:
        for theirs in every:
            fits = ours.dtype == theirs.dtype and ours.groups[0].kv_heads == theirs.groups[0].kv_heads
            if fits:
                check_compatible(ours, theirs)
                continue
            refused += 1
            with pytest.raises(GeometryMismatchError, match=REFUSAL):
                check_compatible(ours, theirs)
    assert refused > len(every)

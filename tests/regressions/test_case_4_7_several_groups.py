"""Case 4.7: hybrid models, MLA and states: one page size assumed for all layers, state tensors missed, a
partial hit on a large-page group reused wrong positions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from _ranks import Engine, Setup, Shape, transfer
from _vllm_shapes import attention, kv_cache_config
from kvferry.errors import GeometryMismatchError, OutOfRangeError, UnsupportedError
from kvferry.layout import check_compatible
from kvferry_vllm import _support

TOKENS = 320
WINDOW = 128
MODEL = (
    Shape("full", 4, 4),
    Shape("window", 4, 4, "window", window=WINDOW),
    Shape("state", 2, 0, "state"),
    Shape("mla", 2, 1, "latent"),
)


def lists(seed: int, first_held: int = TOKENS - WINDOW) -> list[np.ndarray]:
    """Block ids by group: pages of 16 tokens, and of 64 for states; null blocks before `first_held`."""
    rng = np.random.default_rng(seed)
    found = [rng.permutation(np.arange(1, 24))[: -(-TOKENS // size)] for size in (16, 16, 64, 16)]
    found[1][: first_held // 16] = 0
    found[2][:-1] = 0
    return found


def engines(tp: int = 2) -> tuple[Engine, Engine]:
    near, far = Engine(MODEL, Setup(tp, (0,), 16, "LBHNC")), Engine(MODEL, Setup(tp, (0, 2), 16, "BLNHC"))
    far.write(lists(2), TOKENS)
    return near, far


@pytest.mark.parametrize("first", [0, 64, 304])
def test_each_group_moves_what_it_holds_up_to_one_token_boundary(first):
    near, far = engines()
    blocks = lists(1)
    transfer(near, far, (blocks, lists(2)), first, TOKENS)
    for rank, name, where, values in near.cells(blocks, TOKENS):
        got = near.read(rank, name, where)
        if "state" in name:
            np.testing.assert_array_equal(got, values)
            continue
        held = TOKENS - len(values)
        np.testing.assert_array_equal(
            got[max(0, first - held) :], values[max(0, first - held) :], err_msg=name
        )
        assert (got[: max(0, first - held)].view(np.uint8) == 0xEE).all(), name


def test_a_window_that_the_other_side_has_given_up_is_no_hit():
    near, far = engines()
    with pytest.raises(OutOfRangeError, match="no longer has the block of token 192"):
        transfer(near, far, (lists(1), lists(2, TOKENS - WINDOW + 16)), 0, TOKENS)


def test_a_state_of_another_number_of_ranks_is_refused_by_group():
    ours, theirs = Engine(MODEL, Setup(2)), Engine(MODEL, Setup(4))
    with pytest.raises(GeometryMismatchError, match=r"^group 2 tp_size: ours 2, theirs 4; a recurrent state"):
        check_compatible(ours.ranks[0].geometry, theirs.ranks[0].geometry)


def test_a_group_that_one_side_lacks_is_refused():
    ours, theirs = Engine(MODEL, Setup()), Engine(MODEL[:3], Setup())
    with pytest.raises(GeometryMismatchError, match=r"^number of KV cache groups: ours 4, theirs 3"):
        check_compatible(ours.ranks[0].geometry, theirs.ranks[0].geometry)


def test_a_draft_layer_that_one_side_lacks_is_refused():
    ours, theirs = Engine((Shape("full", 5, 4),), Setup()), Engine((Shape("full", 4, 4),), Setup())
    with pytest.raises(GeometryMismatchError, match=r"number of layers: ours 5, theirs 4; .*speculative"):
        check_compatible(ours.ranks[0].geometry, theirs.ranks[0].geometry)


def test_a_kind_of_cache_that_is_not_known_is_refused_at_start_not_skipped():
    with pytest.raises(UnsupportedError, match="of kind CrossAttentionSpec"):
        _support.check_groups(
            kv_cache_config(attention(), type("CrossAttentionSpec", (SimpleNamespace,), {})())
        )

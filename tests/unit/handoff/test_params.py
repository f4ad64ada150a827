from __future__ import annotations

import contextlib
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import InvalidArgumentError
from kvferry.handoff import (
    LeaseAddress,
    LeaseIssuer,
    RemotePrefill,
    build_remote_prefill,
    parse_lease_address,
    parse_remote_prefill,
    prompt_digest,
    wants_remote_decode,
    wants_remote_prefill,
)

REMOTE = RemotePrefill(
    address=LeaseAddress(
        lease=LeaseIssuer().issue(),
        node_ids=("2" * 32, "1" * 32),
        endpoints=("127.0.0.1:4000", "[::1]:4001"),
        digest="ab" * 16,
        lease_s=12.5,
    ),
    block_ids=((3, 1, 2),),
    num_tokens=70,
    engine_id="engine",
    request_id="request",
)
PARAMS = build_remote_prefill(REMOTE, host="127.0.0.1", port=4000)


def test_round_trip():
    assert parse_remote_prefill(PARAMS) == REMOTE
    assert parse_lease_address(PARAMS) == REMOTE.address


def test_has_the_keys_of_pull_mode_connectors():
    assert PARAMS["do_remote_prefill"] is True
    assert PARAMS["do_remote_decode"] is False
    assert PARAMS["remote_block_ids"] == [[3, 1, 2]]
    assert PARAMS["tp_size"] == 2
    assert {
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "transfer_mode",
    } <= set(PARAMS)


def test_unknown_keys_are_left_alone():
    params = {**PARAMS, "remote_prefill_cached_tokens": 3, "something": {"new": 1}}
    assert parse_remote_prefill(params) == REMOTE


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kvferry",), None),
        (("kvferry",), "x"),
        (("kvferry", "lease"), "not a lease"),
        (("kvferry", "lease"), "0" * 16 + ".0." + "0" * 16),
        (("kvferry", "lease"), 7),
        (("kvferry", "node_ids"), []),
        (("kvferry", "node_ids"), ["0" * 31]),
        (("kvferry", "node_ids"), ["1" * 32]),
        (("kvferry", "node_ids"), ["0" * 32, "1" * 32]),
        (("kvferry", "endpoints"), ["a" * 300, "b:1"]),
        (("kvferry", "endpoints"), "127.0.0.1:4000"),
        (("kvferry", "endpoints"), ["\ud800:4000", "[::1]:4001"]),
        (("kvferry", "digest"), "x" * 1000),
        (("kvferry", "lease_s"), 0),
        (("kvferry", "lease_s"), float("nan")),
        (("remote_block_ids",), None),
        (("remote_block_ids",), []),
        (("remote_block_ids",), [[]]),
        (("remote_block_ids",), [[-1]]),
        (("remote_block_ids",), [[1 << 40]]),
        (("remote_block_ids",), [["1"]]),
        (("remote_block_ids",), [[1.5]]),
        (("remote_block_ids",), [1, 2]),
        (("remote_num_tokens",), 0),
        (("remote_num_tokens",), None),
        (("remote_num_tokens",), "70"),
        (("remote_engine_id",), 5),
        (("remote_request_id",), "r" * 1000),
        (("kvferry", "digest"), "\ud800"),
        (("\ud800",), 1),
    ],
)
def test_each_wrong_field_is_refused_in_one_sentence(path, value):
    params = copy.deepcopy(PARAMS)
    inner = params
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(InvalidArgumentError) as caught:
        parse_remote_prefill(params)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("params", [None, [], "x", 3, {}, {"do_remote_prefill": True, "remote_host": "h"}])
def test_not_ours(params):
    with pytest.raises(InvalidArgumentError):
        parse_remote_prefill(params)


def test_missing_key_says_what_is_wrong():
    with pytest.raises(InvalidArgumentError, match="or the proxy dropped the key"):
        parse_remote_prefill({"do_remote_prefill": True})


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20),  # surrogates included, as in JSON
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(sorted(PARAMS)), json_like))
def test_whatever_a_client_sends_only_one_kind_of_error_comes_out(changes):
    with contextlib.suppress(InvalidArgumentError):
        parse_remote_prefill({**PARAMS, **changes})


def test_flags():
    assert wants_remote_prefill({"do_remote_prefill": True})
    assert wants_remote_decode({"do_remote_decode": True})
    for not_true in (None, [], "x", {}, {"do_remote_prefill": 1, "do_remote_decode": "yes"}):
        assert not wants_remote_prefill(not_true)
        assert not wants_remote_decode(not_true)


def test_digest_tells_prompts_and_extras_apart():
    base = prompt_digest([1, 2, 3])
    assert base == prompt_digest([1, 2, 3])
    assert len(base) == 32
    others = [
        prompt_digest([1, 2, 4]),
        prompt_digest([1, 2]),
        prompt_digest([1, 2, 3], ["lora"]),
        prompt_digest([1, 2, 3], ["lo", "ra"]),
        prompt_digest([1, 2, 3], ["lor", "a"]),
        prompt_digest([1, 2, 3], [""]),
    ]
    assert len({base, *others}) == len(others) + 1


def test_digest_takes_any_text_that_json_can_hold():
    assert prompt_digest([1], ["lora=\ud800"]) != prompt_digest([1], ["lora=\ud801"])

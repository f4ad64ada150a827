"""Bodies of the prefill/decode protocol, and which requests must not be split."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import InvalidArgumentError, ProtocolError
from kvferry.router.protocol import (
    EXTRA_ARGUMENTS,
    ROUTER_ONLY_FIELDS,
    decode_body,
    error_event,
    parse_request,
    prefill_body,
    read_handoff,
)

HANDOFF = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "kvferry": {"lease": "é\n"}}


def parse(**fields: Any) -> Any:
    return parse_request(json.dumps({"model": "m", "prompt": "p", **fields}).encode())


def test_prefill_body_is_the_request_cut_to_one_token() -> None:
    request = parse(
        max_tokens=50,
        max_completion_tokens=60,
        min_tokens=10,
        stream=True,
        stream_options={"include_usage": True},
        stop=["x"],
        stop_token_ids=[3],
        temperature=0.5,
        tools=[{"type": "function"}],
        tool_choice="auto",
        response_format={"type": "json_object"},
        cache_salt="salt",
    )
    assert json.loads(prefill_body(request)) == {
        "model": "m",
        "prompt": "p",
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "stream": False,
        "ignore_eos": True,
        "temperature": 0.5,
        "tools": [{"type": "function"}],
        "tool_choice": "auto",
        "response_format": {"type": "json_object"},
        "cache_salt": "salt",
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }


def test_max_completion_tokens_is_only_set_where_it_was_given() -> None:
    assert "max_completion_tokens" not in json.loads(prefill_body(parse()))


@pytest.mark.parametrize("raw", [b"{}", b" { } \n", b'{"a":1}', b'{"a": {"b": []} }\r\n\t'])
def test_decode_body_adds_the_handoff_to_the_clients_own_bytes(raw: bytes) -> None:
    body = decode_body(parse_request(raw), {"kv_transfer_params": HANDOFF})
    assert json.loads(body) == {**json.loads(raw), "kv_transfer_params": HANDOFF}
    assert body.startswith(raw.rstrip()[:-1].rstrip())


def test_decode_body_without_handoff_is_untouched() -> None:
    raw = b'{"prompt":"x",  "temperature":1.0000000000000000001, "seed":123456789012345678901234567890}'
    assert decode_body(parse_request(raw), None) == raw


@given(
    st.dictionaries(
        st.text().filter(lambda name: name not in (*ROUTER_ONLY_FIELDS, EXTRA_ARGUMENTS)),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**60), 2**60)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    )
)
def test_whatever_the_fields_decode_sees_them_and_the_handoff(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields, allow_nan=False, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        request = parse_request(raw)
    except InvalidArgumentError:
        with pytest.raises(UnicodeDecodeError):
            raw.decode()  # only text that no server could read is refused
        return
    assert json.loads(decode_body(request, {"kv_transfer_params": HANDOFF})) == {
        **fields,
        "kv_transfer_params": HANDOFF,
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"n": 1}, None),
        ({"n": None, "best_of": None}, None),
        ({"n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "beam_search"),
        ({"use_beam_search": False}, None),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"logprobs": 5}, None),
        ({"echo": True}, None),
        ({"echo": True, "logprobs": 0}, "echo_logprobs"),
        ({"echo": True, "max_tokens": 0}, "echo_logprobs"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"prompt": ["one"]}, None),
        ({"prompt": ["one", "two"]}, "prompt_list"),
        ({"prompt": []}, "prompt_list"),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1, 2, 3]]}, None),
        ({"prompt": [[1], [2]]}, "prompt_list"),
        ({"truncate_prompt_tokens": 100}, None),
        ({"truncate_prompt_tokens": -1}, "truncate_prompt_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_tokens"),
        ({"max_tokens": None}, None),
        ({"tools": [{}], "tool_choice": "required"}, None),
        ({"structured_outputs": {"json": {}}}, None),
    ],
)
def test_requests_that_cannot_be_split_are_found(fields: dict[str, Any], reason: str | None) -> None:
    assert parse(**fields).bypass == reason


@pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params"])
def test_transfer_fields_from_a_client_are_refused(field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{field}` is set by the router"):
        parse(**{field: {"remote_host": "10.0.0.1"}})


def test_hidden_duplicates_of_a_transfer_field_never_reach_an_engine() -> None:
    raw = b'{"prompt":"p","kv_transfer_param\\u0073":{"remote_host":"evil"},"kv_transfer_params":null}'
    assert b"evil" not in decode_body(parse_request(raw), None)
    assert b"evil" not in decode_body(parse_request(raw), {"kv_transfer_params": HANDOFF})


@pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("as_text", [False, True])
def test_transfer_fields_among_the_extra_arguments_are_refused(field: str, as_text: bool) -> None:
    extra: Any = {"session_id": "s", field: {"remote_host": "10.0.0.1"}}
    with pytest.raises(InvalidArgumentError, match=f"`vllm_xargs.{field}` is set by the router"):
        parse(vllm_xargs=json.dumps(extra) if as_text else extra)


def test_escaped_and_repeated_extra_arguments_never_reach_an_engine() -> None:
    escaped = b'{"vllm_xarg\\u0073":{"\\u006bv_transfer_params":"evil"}}'
    with pytest.raises(InvalidArgumentError, match=r"vllm_xargs\.kv_transfer_params"):
        parse_request(escaped)
    for last in (b"null", b"{}", b'"text"', b'"{"', b"1"):
        raw = b'{"prompt":"p","vllm_xargs":{"kv_transfer_params":"evil"},"vllm_xargs":' + last + b"}"
        assert b"evil" not in decode_body(parse_request(raw), {"kv_transfer_params": HANDOFF})


def test_other_extra_arguments_go_on() -> None:
    request = parse(vllm_xargs={"session_id": "s", "kv_transfer_params": None, "ec_transfer_params": None})
    for body in (decode_body(request, {"kv_transfer_params": HANDOFF}), prefill_body(request)):
        assert json.loads(body)["vllm_xargs"] == {"session_id": "s"}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_bodies_that_are_no_request_are_refused(raw: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_request(raw)


def test_handoff_is_read_from_an_answer() -> None:
    answer = json.dumps({"id": "x", "choices": [{"text": "t"}], "kv_transfer_params": HANDOFF}).encode()
    assert read_handoff(answer) == HANDOFF


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": False}, {"do_remote_prefill": 1}])
def test_an_answer_without_handoff_is_told_apart(params: object) -> None:
    assert read_handoff(json.dumps({"choices": [], "kv_transfer_params": params}).encode()) is None


@pytest.mark.parametrize("raw", [b"", b"<html>", b"[]", b'{"choices":[],"kv_transfer_params":[1]}', b"{}"])
def test_malformed_answers_are_errors(raw: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        read_handoff(raw)


def test_error_event_is_what_openai_clients_understand() -> None:
    first, last, rest = error_event("broke\noff", status=502, kind="BadGatewayError").split(b"\n\n")
    assert json.loads(first.removeprefix(b"data: "))["error"] == {
        "message": "broke\noff",
        "type": "BadGatewayError",
        "param": None,
        "code": 502,
    }
    assert (last, rest) == (b"data: [DONE]", b"")

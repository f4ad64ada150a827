"""Prefill/decode protocol of vLLM's pull mode, as pure functions on request and answer bodies.

The prefill server gets the client's request cut down to one token, and answers with a `kv_transfer_params`
object that says where the prompt's KV cache lies. The decode server gets the client's own request with that
object added, fetches the blocks and generates. Both compute the same prompt, since every field that shapes
the prompt is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kvferry.errors import InvalidArgumentError, ProtocolError

# Fields by which one engine tells another where to fetch memory from. They are the router's to fill in: taken
# from a client they would make an engine contact any address, or read another request's blocks.
ROUTER_ONLY_FIELDS = (
    "kv_transfer_params",
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "migration_request",
    "with_cache",
    "preserve_cache",
)
# Its members become the engine's extra arguments, just as the fields above do.
EXTRA_ARGUMENTS = "vllm_xargs"

_PREFILL_PARAMS: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# Fields that only say how the answer streams or ends. Without them the one token of the prefill server never
# counts as a stop, after which an engine hands nothing over.
_DROPPED_FOR_PREFILL = (
    "stream_options",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
)


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request body that is a JSON object.

    `raw` is what the client sent; `fields` the decoded object without the router's own fields; `bypass` names
    why the prefill server must not be used, or is None. `encoded` is what encode servers said of its media.
    """

    raw: bytes
    fields: dict[str, Any]
    cleaned: bool
    bypass: str | None
    encoded: dict[str, Any] = {}

    @property
    def stream(self) -> bool:
        """Whether the client asked for server-sent events."""
        return self.fields.get("stream") is True

    @property
    def model(self) -> str:
        """The model's name, or an empty string."""
        model = self.fields.get("model")
        return model if isinstance(model, str) else ""

    @property
    def max_output_tokens(self) -> int | None:
        """The client's limit on the answer's length in tokens, if it gave one."""
        for name in ("max_completion_tokens", "max_tokens"):
            value = self.fields.get(name)
            if isinstance(value, int):
                return value
        return None


def parse_request(raw: bytes) -> ParsedRequest:
    """Decode and classify a client's body.

    Raises `InvalidArgumentError` if it is not a JSON object, or carries a field that only the router may set.
    """
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidArgumentError("the request body is nested too deeply") from error
    if not isinstance(fields, dict):
        raise InvalidArgumentError("the request body must be a JSON object")
    cleaned = _drop_router_only(fields)
    if EXTRA_ARGUMENTS in fields:
        _drop_router_only(_extra_arguments(fields), f"{EXTRA_ARGUMENTS}.")
        cleaned = True  # a second field of that name, which was not looked at, must not reach an engine
    return ParsedRequest(raw=raw, fields=fields, cleaned=cleaned, bypass=_bypass_reason(fields))


def _drop_router_only(fields: dict[str, Any], where: str = "") -> bool:
    """Take the router's own fields out if they are null, and say whether one was there; else refuse them."""
    found = [name for name in ROUTER_ONLY_FIELDS if name in fields]
    for name in found:
        if fields.pop(name) is not None:
            raise InvalidArgumentError(
                f"`{where}{name}` is set by the router and not accepted here: remove it"
            )
    return bool(found)


def _extra_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extra arguments to check, those in a text (as HTML forms have them) included."""
    found = fields[EXTRA_ARGUMENTS]
    if isinstance(found, str):
        try:
            found = msgspec.json.decode(found)
        except (msgspec.DecodeError, RecursionError):
            return {}  # no engine can read it either
    return found if isinstance(found, dict) else {}


def _bypass_reason(fields: Mapping[str, Any]) -> str | None:
    """Say why a request has to be computed by the decode server alone, or None; see docs/router.md."""
    return next((reason for reason, applies in _BYPASSES if applies(fields)), None)


def _is_many(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda fields: fields.get(name) not in (None, 1)


def _scores_prompt(fields: Mapping[str, Any]) -> bool:
    return bool(fields.get("echo")) and (fields.get("logprobs") is not None or fields.get("max_tokens") == 0)


def _has_several_prompts(fields: Mapping[str, Any]) -> bool:
    prompt = fields.get("prompt")
    return isinstance(prompt, list) and len(prompt) != 1 and not _is_token_list(prompt)


def _has_odd_limit(fields: Mapping[str, Any]) -> bool:
    limits = (fields.get("max_tokens"), fields.get("max_completion_tokens"))
    return any(limit is not None and (not isinstance(limit, int) or limit < 1) for limit in limits)


def _truncates_by_answer_length(fields: Mapping[str, Any]) -> bool:
    # -1 cuts the prompt to what the answer's limit leaves of the context, which differs for one token.
    limit = fields.get("truncate_prompt_tokens")
    return limit is not None and (not isinstance(limit, int) or limit < 0)


# One hand-off is one prompt's KV cache, fetched once, in place of computing the prompt.
_BYPASSES: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("n", _is_many("n")),
    ("best_of", _is_many("best_of")),
    ("beam_search", lambda fields: bool(fields.get("use_beam_search"))),
    ("prompt_logprobs", lambda fields: fields.get("prompt_logprobs") is not None),
    ("echo_logprobs", _scores_prompt),
    ("prompt_embeds", lambda fields: fields.get("prompt_embeds") is not None),
    ("prompt_list", _has_several_prompts),
    ("truncate_prompt_tokens", _truncates_by_answer_length),
    ("max_tokens", _has_odd_limit),
)


def _is_token_list(prompt: list[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def prefill_body(request: ParsedRequest, order: Mapping[str, object] | None = None) -> bytes:
    """Build the prefill server's body: the same request, one token, not streamed, kept for a hand-off.

    `order` is what else the prefill engine is to be told about the hand-off.
    """
    fields = one_token_of(request, _DROPPED_FOR_PREFILL)
    fields["ignore_eos"] = True
    fields["kv_transfer_params"] = {**_PREFILL_PARAMS, **(order or {})}
    if request.encoded:
        fields["ec_transfer_params"] = request.encoded
    return msgspec.json.encode(fields)


def one_token_of(request: ParsedRequest, dropped: Sequence[str]) -> dict[str, Any]:
    """Return the fields of the same request for one token, not streamed, without the `dropped` ones."""
    fields = {name: value for name, value in request.fields.items() if name not in dropped}
    fields["stream"] = False
    fields["max_tokens"] = 1
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = 1
    return fields


def decode_body(request: ParsedRequest, fields: Mapping[str, Any] | None) -> bytes:
    """Build the decode server's body: the client's own bytes, with the hand-off's fields added, if any.

    The client's bytes are kept as they are, so that numbers and text reach the engine unaltered and a long
    prompt is not encoded again. A server that is to compute the prompt is told of its media, too.
    """
    if not fields and request.encoded:
        fields = {"ec_transfer_params": request.encoded}
    body = msgspec.json.encode(request.fields) if request.cleaned else request.raw
    if not fields:
        return body
    head = body.rstrip()[:-1].rstrip()
    separator = b"" if head.endswith(b"{") else b","
    return b"".join((head, separator, msgspec.json.encode(fields)[1:]))


def read_handoff(body: bytes) -> dict[str, Any] | None:
    """Take the hand-off out of a prefill server's answer; None if the server kept nothing for one.

    Raises `ProtocolError` if the answer is not what an OpenAI-compatible server sends.
    """
    try:
        answer = msgspec.json.decode(body, type=_PrefillAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the prefill server's answer cannot be read: {error}") from error
    params = answer.kv_transfer_params
    if params is None or params.get("do_remote_prefill") is not True:
        return None
    return params


class _PrefillAnswer(msgspec.Struct):
    choices: list[msgspec.Raw]
    kv_transfer_params: dict[str, Any] | None = None


def error_body(message: str, *, status: int, kind: str) -> bytes:
    """Encode an error as OpenAI-compatible servers do: `{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def error_event(message: str, *, status: int, kind: str) -> bytes:
    """Encode an error as the last events of a server-sent stream, `[DONE]` included."""
    return b"data: " + error_body(message, status=status, kind=kind) + b"\n\ndata: [DONE]\n\n"

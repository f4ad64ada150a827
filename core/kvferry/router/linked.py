"""One request's way through prefill and decode servers of LMDeploy (its DistServe).

As with vLLM the prefill server is asked for one token first, and its answer says what the decode server
needs: the blocks, and here also the token, which is the first of the answer. Two things differ: the servers
have to be connected once (`links`), and a hand-off is good for the decode server that it was made for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import aiohttp
import msgspec

from kvferry.errors import ProtocolError
from kvferry.router.exchange import Exchange
from kvferry.router.instances import Instance
from kvferry.router.links import PROTOCOL, LinkError
from kvferry.router.prefill import NoHandoffError, PrefillStep
from kvferry.router.protocol import one_token_of
from kvferry.router.streaming import Handoff
from kvferry.router.upstream import BodyReader, Trouble, UpstreamError

# Whether a stop is met at once is for the prefill server to say, so that the stops stay.
_DROPPED_FOR_PREFILL = ("stream_options", "min_tokens", "min_new_tokens", "session_id")
# LMDeploy's number of a session that is not there. The decode server tells the prefill server to end the one
# that we name, but the number that a server answers with is not the one that it ends sessions by.
_NO_SESSION = -1
# With a hand-off a decode server has neither the first token's probabilities nor a grammar's state after it.
_NEEDS_FIRST_TOKEN = ("logprobs", "return_logprob", "output_logits", "output_last_hidden_state")


class LinkedHandoff(Handoff):
    """Blocks of a prefill server, for one decode server. Nobody has to give them back: LMDeploy keeps no
    leases, and takes blocks again when it needs them.
    """

    @property
    def fields(self) -> Mapping[str, Any] | None:
        """What is added to the decode server's body."""
        return None if self.params is None else {"migration_request": self.params}

    def moves(self) -> None:
        """Another decode server computes the prompt: it need not be connected."""
        self.params = None

    def give_back(self, *, rejected: bool) -> None:
        """No decode server will fetch them."""
        self.params = None


class LinkedPrefillStep(PrefillStep):
    """Runs the prefill step of one request on a server that the decode server is connected with."""

    async def run(self, decode: Instance, first: Instance | None) -> Handoff:
        """As with vLLM."""
        self._decode = decode
        return await super().run(decode, first)

    async def _ask(self, instance: Instance, body: bytes) -> dict[str, Any]:
        try:
            name = await self._core.links.connect((instance, self._decode), self._headers)
        except LinkError as error:
            if error.is_unreachable(instance):
                raise UpstreamError(Trouble.UNREACHABLE, str(error)) from error
            raise NoHandoffError("not_connected", str(error)) from error
        return {**await super()._ask(instance, body), "remote_engine_id": name}

    def _body(self) -> bytes:
        fields = one_token_of(self._parsed, _DROPPED_FOR_PREFILL)
        return msgspec.json.encode({**fields, "with_cache": True, "preserve_cache": True})

    def _read(self, instance: Instance, answer: bytes) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(answer, type=_PrefillAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the prefill server's answer cannot be read: {error}") from error
        if any(choice.finish_reason != "length" for choice in found.choices):
            why = f"{instance.name}: the first token ends the answer"
            raise NoHandoffError("ended", why, in_order=True)
        if not found.cache_block_ids or not found.remote_token_ids:
            why = f"{instance.name} named no blocks: is it LMDeploy's PyTorch engine, with --role Prefill?"
            raise NoHandoffError("no_handoff", why, in_order=True)
        return {
            "protocol": PROTOCOL,
            "remote_session_id": _NO_SESSION,
            "remote_block_ids": found.cache_block_ids,
            "remote_token_id": found.remote_token_ids[-1],
        }

    def _handoff(self, params: dict[str, Any]) -> Handoff:
        return LinkedHandoff(self._core.releaser, params)

    def _left(self, response: aiohttp.ClientResponse, reader: BodyReader) -> None:
        response.close()


class LinkedExchange(Exchange):
    """Serves one admitted request by LMDeploy's servers."""

    prefill_step = LinkedPrefillStep

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self._parsed.bypass is None and (reason := _bypass_reason(self._parsed.fields)) is not None:
            self._parsed = msgspec.structs.replace(self._parsed, bypass=reason)
            self._features = msgspec.structs.replace(self._features, wants_prefill=False)


def _bypass_reason(fields: Mapping[str, Any]) -> str | None:
    """Why a request has to be computed by the decode server alone, beyond what holds for any engine."""
    if 1 in (fields.get("max_completion_tokens"), fields.get("max_tokens")):
        return "max_tokens"  # the decode server generates one more than the one it is given
    if any(fields.get(name) for name in _NEEDS_FIRST_TOKEN):
        return "logprobs"
    shape = fields.get("response_format")
    if shape is not None and not (isinstance(shape, dict) and shape.get("type") == "text"):
        return "response_format"
    return None


_Number = Annotated[int, msgspec.Meta(ge=0)]


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _PrefillAnswer(msgspec.Struct):
    choices: list[_Choice]
    cache_block_ids: list[_Number] | None = None
    remote_token_ids: list[_Number] | None = None

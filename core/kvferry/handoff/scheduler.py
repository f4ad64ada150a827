"""The scheduler's side of hand-offs: which prompts are at a prefill engine, and which of ours are leased to
others.

For an engine's loop: nothing here blocks, and nothing a client sends makes it raise.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvferry.errors import InvalidArgumentError
from kvferry.handoff.consumer import LoadRequest
from kvferry.handoff.leases import LeaseIssuer
from kvferry.handoff.messages import ReleaseReason
from kvferry.handoff.orders import GiveBack, HandoffOrders, Watch
from kvferry.handoff.params import (
    LeaseAddress,
    RemotePrefill,
    StreamAddress,
    build_remote_prefill,
    content_digest,
    names_stream,
    parse_remote_prefill,
    parse_stream,
    parse_stream_order,
    prompt_digest,
    wants_remote_prefill,
)
from kvferry.handoff.stream_in import StreamLoad, StreamRequest
from kvferry.handoff.stream_out import Chunk, Ending, Opening
from kvferry.handoff.throttle import WarningThrottle

logger = logging.getLogger(__name__)


class WorkerAddress(NamedTuple):
    """Where one worker's transfer engine is."""

    node_id: str
    endpoint: str


class Prompt(NamedTuple):
    """A request as far as hand-offs see it. `params` are its `kv_transfer_params`, as the client sent them;
    `extras` is what its KV cache depends on besides tokens, see `prompt_digest`.
    """

    request_id: str
    token_ids: Sequence[int] | None  # None: given as embeddings
    num_tokens: int
    extras: Sequence[str]
    params: Any


class _OutgoingStream:
    """A prompt that we compute and announce."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.told = 0  # blocks


class HandoffScheduler:
    """One per engine core. Not thread-safe: it belongs to the core's loop."""

    def __init__(
        self,
        engine_id: str,
        *,
        block_tokens: Sequence[int],
        is_consumer: bool,
        lease_s: float,
        withheld: int = 0,
    ) -> None:
        """`block_tokens`: tokens of a block, by group. `is_consumer`: this engine loads from others.
        `withheld`: how many last tokens of a prompt a prefill engine of the same model does not compute.
        """
        self._engine_id = engine_id
        self._block_tokens = tuple(block_tokens)
        self._is_consumer = is_consumer
        self._lease_s = lease_s
        self._withheld = withheld
        self._leases = LeaseIssuer()
        self._workers: tuple[WorkerAddress, ...] = ()
        self._stages = 1
        # Prompts whose KV cache is at a prefill engine and not loaded yet.
        self._offers: dict[str, tuple[Prompt, RemotePrefill]] = {}
        # Prompts that a prefill engine is computing, and those that we compute for others.
        self._follows: dict[str, tuple[Prompt, StreamAddress]] = {}
        self._streams: dict[str, _OutgoingStream] = {}
        self._loading: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._warnings = WarningThrottle()
        self._reset_orders()

    @property
    def is_known(self) -> bool:
        """Whether the workers' addresses are known: nothing can be handed off before."""
        return bool(self._workers)

    def set_workers(self, workers: Sequence[WorkerAddress], *, stages: int = 1) -> None:
        """Take the workers' addresses, by pipeline stage and then by tensor-parallel rank."""
        self._workers = tuple(workers)
        self._stages = stages

    def arrived(self, prompt: Prompt, *, refused: bool = False) -> None:
        """Look at a request's parameters once, and from now on keep the lease they name alive.

        `refused`: the engine itself will not serve it.
        """
        if not wants_remote_prefill(prompt.params):
            return
        if names_stream(prompt.params):
            self._follow(prompt, refused=refused)
            return
        try:
            offer = parse_remote_prefill(prompt.params)
        except InvalidArgumentError as error:
            self._refuse(prompt, "invalid_params", str(error))
            return
        self._offers[prompt.request_id] = (prompt, offer)
        if offer.address.node_ids == tuple(worker.node_id for worker in self._workers):
            # from ourselves: what there is of it is in the local prefix cache
            self.give_back(prompt.request_id, "done")
            return
        reason = self._why_not(prompt, offer)
        if reason is None:
            self._watches.append(Watch(prompt.request_id, offer.address))
        elif not refused:
            self._refuse(prompt, *reason)
            self.give_back(prompt.request_id, "rejected")

    def offered_tokens(self, request_id: str) -> int:
        """Return how many of the prompt's first tokens a prefill engine has for it, or is computing for it; 0
        if none does."""
        if request_id in self._follows:
            return self._follows[request_id][0].num_tokens
        found = self._offers.get(request_id)
        return 0 if found is None else min(found[1].num_tokens, found[0].num_tokens)

    def load(
        self, request_id: str, first_token: int, num_tokens: int, block_ids: Sequence[Sequence[int]]
    ) -> None:
        """Order a load into the request's blocks; `block_ids` has all, by group. Uses the offer up."""
        end_token = first_token + num_tokens
        local = tuple(
            tuple(ids[first_token // size : -(-end_token // size)])
            for ids, size in zip(block_ids, self._block_tokens, strict=True)
        )
        if request_id in self._follows:
            self._stream_loads.append(StreamLoad(request_id, local, first_token, num_tokens))
        else:
            offer = self._offers[request_id][1]
            self._loads.append(LoadRequest(request_id, offer, local, first_token, num_tokens))
        self._loading.add(request_id)
        self._consume(request_id)

    def give_back(self, request_id: str, reason: ReleaseReason) -> None:
        """Give back the lease of an offer that is not needed; unknown requests are fine."""
        found = self._offers.get(request_id)
        if request_id in self._follows:
            self._stream_releases.append((request_id, reason))
            self._consume(request_id)
        elif found is not None:
            self._give_backs.append(GiveBack(request_id, found[1].address, reason))
            self._consume(request_id)

    def loads_ended(self, request_ids: set[str]) -> None:
        """Forget loads that the workers reported."""
        self._loading -= request_ids

    def finished(self, request_id: str) -> None:
        """Undo what a request still has: it has ended. To be called after `lease`, if that is called."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._endings.append(Ending(stream.name, stream.generation, None, "the request was aborted"))
        self.give_back(request_id, "rejected")  # it never got blocks: aborted or refused before
        if request_id in self._loading:
            self._loading.discard(request_id)
            self._cancels.append(request_id)

    def stream(self, prompt: Prompt, *, refused: bool = False) -> None:
        """Announce how the prefill of this request, which came with an order to hand it off, gets on; if the
        router wants it. An order that cannot be read is counted, and the prompt is handed off at its end.

        `refused`: there will be no hand-off, which the decode engine is told at once.
        """
        if not names_stream(prompt.params):
            return
        try:
            name = parse_stream_order(prompt.params)
        except InvalidArgumentError as error:
            self._counts["refused_invalid_params"] += 1
            logger.log(self._warnings.level("stream"), "a prefill is not announced: %s", error)
            return
        if any(stream.name == name for stream in self._streams.values()):
            self._counts["refused_invalid_params"] += 1  # its blocks would be told as the other one's
            return
        refused = refused or prompt.token_ids is None
        self._openings.append(Opening(name, _digest(prompt)))
        if refused:
            self._endings.append(Ending(name, 0, None, "the prefill engine does not hand this prompt off"))
        else:
            self._streams[prompt.request_id] = _OutgoingStream(name)

    def computes(
        self,
        request_id: str,
        end_token: int,
        generation: int,
        block_ids: Callable[[], Sequence[Sequence[int]]],
    ) -> None:
        """The step that is being planned computes a prompt up to `end_token`, in the first ones of these
        blocks. `generation` grows each time that the engine begins the prompt anew. For engines with one list
        of blocks, all of which it keeps until the request ends."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        if generation != stream.generation:
            stream.generation, stream.told = generation, 0
        blocks = tuple(block_ids()[0][stream.told : -(-end_token // self._block_tokens[0])])
        stream.told += len(blocks)
        self._chunks.append(Chunk(stream.name, generation, blocks, end_token))

    def is_streamed(self, request_id: str) -> bool:
        """Whether `computes` wants to know of a request."""
        return request_id in self._streams

    def lease(self, prompt: Prompt, num_tokens: int, block_ids: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Lease the blocks of the first `num_tokens` and describe them to the decode engine."""
        assert prompt.token_ids is not None  # noqa: S101  (tells the type checker)
        offered = tuple(
            tuple(ids[: -(-num_tokens // size)])
            for ids, size in zip(block_ids, self._block_tokens, strict=True)
        )
        digest = prompt_digest(prompt.token_ids[:num_tokens], prompt.extras)
        lease_id = self._leases.issue(content_digest(offered, num_tokens, digest))
        self._new_leases.append((lease_id, prompt.request_id))
        address = LeaseAddress(
            lease=lease_id,
            node_ids=tuple(worker.node_id for worker in self._workers),
            endpoints=tuple(worker.endpoint for worker in self._workers),
            digest=digest,
            lease_s=self._lease_s,
            pp_size=self._stages,
        )
        offer = RemotePrefill(
            address=address,
            block_ids=offered,
            num_tokens=num_tokens,
            engine_id=self._engine_id,
            request_id=prompt.request_id,
        )
        stream = self._streams.pop(prompt.request_id, None)
        if stream is not None:
            self._endings.append(Ending(stream.name, stream.generation, offer))
        host, _, port = address.endpoints[0].rpartition(":")
        return build_remote_prefill(offer, host=host.strip("[]"), port=int(port))

    def take_orders(self) -> HandoffOrders:
        """Return this step's orders and begin anew."""
        orders = HandoffOrders(
            authority=self._leases.authority,
            issued_through=self._leases.issued_through,
            leases=tuple(self._new_leases),
            watches=tuple(self._watches),
            loads=tuple(self._loads),
            give_backs=tuple(self._give_backs),
            cancels=tuple(self._cancels),
            openings=tuple(self._openings),
            chunks=tuple(self._chunks),
            endings=tuple(self._endings),
            follows=tuple(self._new_follows),
            stream_loads=tuple(self._stream_loads),
            stream_releases=tuple(self._stream_releases),
            own_streams=tuple(self._own_streams),
        )
        self._reset_orders()
        return orders

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call: refused_<reason>."""
        if not self._counts:
            return {}
        counts, self._counts = dict(self._counts), Counter()
        return counts

    def _reset_orders(self) -> None:
        self._new_leases: list[tuple[str, str]] = []
        self._watches: list[Watch] = []
        self._loads: list[LoadRequest] = []
        self._give_backs: list[GiveBack] = []
        self._cancels: list[str] = []
        self._openings: list[Opening] = []
        self._chunks: list[Chunk] = []
        self._endings: list[Ending] = []
        self._new_follows: list[StreamRequest] = []
        self._stream_loads: list[StreamLoad] = []
        self._stream_releases: list[tuple[str, ReleaseReason]] = []
        self._own_streams: list[str] = []

    def _follow(self, prompt: Prompt, *, refused: bool) -> None:
        try:
            address = parse_stream(prompt.params)
        except InvalidArgumentError as error:
            self._refuse(prompt, "invalid_params", str(error))
            return
        if address.node_ids == tuple(worker.node_id for worker in self._workers):
            # from ourselves: what there is of it is in the local prefix cache, or will be
            self._own_streams.append(address.stream)
            prompt.params["do_remote_prefill"] = False
            return
        prefilled = _without_last(prompt, self._withheld)
        self._follows[prompt.request_id] = (prefilled, address)
        self._new_follows.append(
            StreamRequest(prompt.request_id, address, _digest(prefilled), prefilled.num_tokens)
        )
        reason = self._why_not_here(prompt)
        if reason is not None:
            if not refused:
                self._refuse(prompt, *reason)
            self.give_back(prompt.request_id, "rejected")

    def _why_not_here(self, prompt: Prompt) -> tuple[str, str] | None:
        """Return why this engine cannot load the prompt from anybody, as a reason and a sentence."""
        if not self._is_consumer:
            return "wrong_role", "this engine has kv_role kv_producer and does not load KV caches"
        if prompt.token_ids is None:
            return "no_token_ids", "the prompt is given as embeddings"
        return None

    def _why_not(self, prompt: Prompt, offer: RemotePrefill) -> tuple[str, str] | None:
        """Return why an offer cannot be used, as a reason and a sentence."""
        reason, tokens = self._why_not_here(prompt), prompt.token_ids
        if reason is not None or tokens is None:
            return reason
        if offer.num_tokens > len(tokens):
            return "other_prompt", f"{offer.num_tokens} tokens were prefilled, the prompt has {len(tokens)}"
        if offer.address.digest != prompt_digest(tokens[: offer.num_tokens], prompt.extras):
            return "other_prompt", "the prefill engine computed another prompt, adapter or image"
        return None

    def _refuse(self, prompt: Prompt, reason: str, sentence: str) -> None:
        self._counts[f"refused_{reason}"] += 1
        # One warning per reason and interval; the rest is in the counts.
        level = self._warnings.level(reason)
        logger.log(level, "request %s is prefilled here: %s", prompt.request_id, sentence)
        if isinstance(prompt.params, dict):
            prompt.params["do_remote_prefill"] = False

    def _consume(self, request_id: str) -> None:
        """The offer is used up: engines ask again after a preemption or a failed load, and must get no."""
        found = self._follows.pop(request_id, None) or self._offers.pop(request_id)
        found[0].params["do_remote_prefill"] = False


def _digest(prompt: Prompt) -> str:
    return "" if prompt.token_ids is None else prompt_digest(prompt.token_ids, prompt.extras)


def _without_last(prompt: Prompt, count: int) -> Prompt:
    if not count or prompt.token_ids is None or prompt.num_tokens <= count:
        return prompt
    return prompt._replace(token_ids=prompt.token_ids[:-count], num_tokens=prompt.num_tokens - count)

"""The scheduler half: decides per request, and writes orders for the workers.

Runs in the engine core's loop: nothing here blocks, and nothing a client sends makes it raise. Free of vLLM
imports; requests and blocks are vLLM's, used by attribute.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from kvferry.errors import InvalidArgumentError
from kvferry.handoff import (
    LeaseAddress,
    LeaseIssuer,
    LoadRequest,
    RemotePrefill,
    WarningThrottle,
    build_remote_prefill,
    content_digest,
    parse_remote_prefill,
    prompt_digest,
    wants_remote_decode,
    wants_remote_prefill,
)
from kvferry.handoff.messages import ReleaseReason
from kvferry_vllm.metadata import GiveBack, StepOrders, Watch

logger = logging.getLogger("kvferry.vllm.scheduler")

_HANDED_OFF = "FINISHED_LENGTH_CAPPED"  # a prefill request has max_tokens=1


class EngineFacts(NamedTuple):
    """What the scheduler half must know of its engine."""

    engine_id: str
    block_size: int  # tokens
    is_producer: bool
    is_consumer: bool
    lease_s: float


class WorkerAddress(NamedTuple):
    """Where one worker's transfer engine is."""

    node_id: str
    endpoint: str


class SchedulerHalf:
    """One per engine core. Not thread-safe: it belongs to the core's loop."""

    def __init__(self, facts: EngineFacts) -> None:
        self._facts = facts
        self._leases = LeaseIssuer()
        self._workers: tuple[WorkerAddress, ...] = ()
        self._offers: dict[
            str, RemotePrefill
        ] = {}  # requests whose KV cache is at a prefill engine, not yet loaded
        self._computed: dict[
            str, int
        ] = {}  # local prefix hit of an offer, in tokens, as of the last question
        self._loading: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._warnings = WarningThrottle()
        self._reset_orders()

    def set_workers(self, workers: Mapping[int, WorkerAddress]) -> None:
        """Take the workers' addresses by tensor-parallel rank; until then nothing is handed off."""
        self._workers = tuple(workers[rank] for rank in sorted(workers))

    def on_new_request(self, request: Any) -> None:
        """Look at a request's `kv_transfer_params` once, and from now on keep the lease it names alive."""
        params = request.kv_transfer_params
        if not wants_remote_prefill(params):
            return
        try:
            offer = parse_remote_prefill(params)
        except InvalidArgumentError as error:
            self._refuse(request, "invalid_params", str(error))
            return
        self._offers[request.request_id] = offer
        if offer.address.node_ids == tuple(worker.node_id for worker in self._workers):
            self._give_back(
                request, "done"
            )  # from ourselves: what there is of it is in the local prefix cache
            return
        reason = self._why_not(request, offer)
        if reason is None:
            self._watches.append(Watch(request.request_id, offer.address))
        elif not getattr(request, "abort_immediately", False):  # else it has been refused by vLLM itself
            self._refuse(request, *reason)
            self._give_back(request, "rejected")

    def matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """How many prompt tokens beyond `num_computed_tokens` to load.

        Asked every step while the request waits.
        """
        offer = self._offers.get(request.request_id)
        if offer is None:
            return 0, False
        total = min(offer.num_tokens, request.num_prompt_tokens)
        wanted = total - num_computed_tokens
        # vLLM computes the last prompt token itself, so that alone is not worth a load.
        if wanted <= 0 or (wanted == 1 and total == request.num_prompt_tokens):
            return 0, False
        self._computed[request.request_id] = num_computed_tokens
        return wanted, True

    def after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Order the load into the blocks just allocated, or give back a lease that is not needed."""
        offer = self._offers.get(request.request_id)
        if offer is None:
            return  # the second call of an asynchronous load, or not ours
        if num_external_tokens <= 0:
            self._give_back(request, "done")
            return
        first_token = self._computed.pop(request.request_id)
        size = self._facts.block_size
        first_block, end_block = first_token // size, -(-(first_token + num_external_tokens) // size)
        (block_ids,) = blocks.get_block_ids()
        self._loads.append(
            LoadRequest(
                request.request_id,
                offer,
                (tuple(block_ids[first_block:end_block]),),
                first_token,
                num_external_tokens,
            )
        )
        self._loading.add(request.request_id)
        self._consume(request)

    def loads_ended(self, request_ids: set[str]) -> None:
        """Forget loads that the workers reported."""
        self._loading -= request_ids

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Return whether the blocks must stay, and the dictionary for the decode engine."""
        request_id = request.request_id
        if request_id in self._offers:  # it never got blocks: aborted or refused before it was scheduled
            self._give_back(request, "rejected")
        elif request_id in self._loading:
            self._loading.discard(request_id)
            self._cancels.append(request_id)
        if not self._hands_off(request, block_ids):
            return False, None
        return True, self._offer_of(request, block_ids)

    def take_orders(self) -> StepOrders:
        """Return this step's orders and begin anew."""
        orders = StepOrders(
            authority=self._leases.authority,
            issued_through=self._leases.issued_through,
            leases=tuple(self._new_leases),
            watches=tuple(self._watches),
            loads=tuple(self._loads),
            give_backs=tuple(self._give_backs),
            cancels=tuple(self._cancels),
        )
        self._reset_orders()
        return orders

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call: refused_<reason>."""
        counts, self._counts = dict(self._counts), Counter()
        return counts

    def _reset_orders(self) -> None:
        self._new_leases: list[tuple[str, str]] = []
        self._watches: list[Watch] = []
        self._loads: list[LoadRequest] = []
        self._give_backs: list[GiveBack] = []
        self._cancels: list[str] = []

    def _why_not(self, request: Any, offer: RemotePrefill) -> tuple[str, str] | None:
        """Return why an offer cannot be used, as a reason and a sentence."""
        if not self._facts.is_consumer:
            return "wrong_role", "this engine has kv_role kv_producer and does not load KV caches"
        tokens = request.prompt_token_ids
        if tokens is None:
            return "no_token_ids", "the prompt is given as embeddings"
        if offer.num_tokens > len(tokens):
            return "other_prompt", f"{offer.num_tokens} tokens were prefilled, the prompt has {len(tokens)}"
        digest = prompt_digest(tokens[: offer.num_tokens], _extras(request))
        if offer.address.digest != digest:
            return "other_prompt", "the prefill engine computed another prompt, adapter or image"
        return None

    def _refuse(self, request: Any, reason: str, sentence: str) -> None:
        self._counts[f"refused_{reason}"] += 1
        # One warning per reason and interval; the rest is in the counts.
        level = self._warnings.level(reason)
        logger.log(level, "request %s is prefilled here: %s", request.request_id, sentence)
        if isinstance(request.kv_transfer_params, dict):
            request.kv_transfer_params["do_remote_prefill"] = False

    def _give_back(self, request: Any, reason: ReleaseReason) -> None:
        offer = self._offers[request.request_id]
        self._give_backs.append(GiveBack(request.request_id, offer.address, reason))
        self._consume(request)

    def _consume(self, request: Any) -> None:
        """The offer is used up: vLLM asks again after a preemption or a failed load, and must then get no."""
        del self._offers[request.request_id]
        self._computed.pop(request.request_id, None)
        request.kv_transfer_params["do_remote_prefill"] = False

    def _hands_off(self, request: Any, block_ids: list[int]) -> bool:
        return (
            wants_remote_decode(request.kv_transfer_params)
            and self._facts.is_producer
            and request.status.name == _HANDED_OFF
            and bool(self._workers)
            and bool(block_ids)
            and request.prompt_token_ids is not None
            and request.num_computed_tokens > 0
        )

    def _offer_of(self, request: Any, block_ids: list[int]) -> dict[str, Any]:
        """Lease the request's blocks and describe them to the decode engine."""
        num_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        offered = (tuple(block_ids[: -(-num_tokens // self._facts.block_size)]),)
        digest = prompt_digest(request.prompt_token_ids[:num_tokens], _extras(request))
        lease_id = self._leases.issue(content_digest(offered, num_tokens, digest))
        self._new_leases.append((lease_id, request.request_id))
        address = LeaseAddress(
            lease=lease_id,
            node_ids=tuple(worker.node_id for worker in self._workers),
            endpoints=tuple(worker.endpoint for worker in self._workers),
            digest=digest,
            lease_s=self._facts.lease_s,
        )
        offer = RemotePrefill(
            address=address,
            block_ids=offered,
            num_tokens=num_tokens,
            engine_id=self._facts.engine_id,
            request_id=request.request_id,
        )
        host, _, port = address.endpoints[0].rpartition(":")
        return build_remote_prefill(offer, host=host.strip("[]"), port=int(port))


def _extras(request: Any) -> list[str]:
    """What a prompt's KV cache depends on besides its tokens, each with a tag."""
    extras = []
    if request.lora_request is not None:
        extras.append(f"lora={request.lora_request.lora_name}")
    extras.extend(
        f"media={feature.identifier}@{feature.mm_position.offset}" for feature in request.mm_features
    )
    return extras

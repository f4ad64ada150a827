"""SGLang's four classes of a transfer backend, on its Mooncake classes with another engine.

What SGLang's classes do here and Mooncake's do not:

- a request's KV cache is one plan of one transfer, for unequal tensor parallelism, too, instead of a call for
  each layer;
- whatever goes wrong while a request is sent fails that request only: neither does the worker thread end with
  it, nor is a decode server given up of which one request failed;
- the reason goes to the decode server, and so to its client; so does an abort on the prefill server;
- a prefill server that cannot be served (another page size, say) fails its requests, not the decode server;
- messages that are not what they should be are dropped, and do not end the thread that reads them;
- a decode server notices the end of a prefill process in a fraction of a second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.staging_buffer import compute_head_slice_params
from sglang.srt.disaggregation.mooncake.conn import (
    MooncakeKVBootstrapServer,
    MooncakeKVManager,
    MooncakeKVReceiver,
    MooncakeKVSender,
)
from sglang.srt.disaggregation.utils import DisaggregationMode, build_transfer_entry_pairs
from sglang.srt.runtime_context import get_device, get_memory

from kvferry.errors import KVFerryError
from kvferry.transfer import Access
from kvferry_sglang.pd.engine import Hello, PDEngine
from kvferry_sglang.pd.lost import LostSessions
from kvferry_sglang.pd.messages import CheckedMessages
from kvferry_sglang.pd.pieces import Entry, HeadSlice, Pieces, blocks, head_slices, whole_pages
from kvferry_sglang.pd.sending import LastSend, one_request_only, worst_of
from kvferry_sglang.pd.watch import PrefillWatch

logger = logging.getLogger(__name__)


class KVFerryKVManager(CheckedMessages):
    """One scheduler process's side of all its requests."""

    sender_trace_module = "kvferry"
    kv_status_msg_carries_reason = True
    engine: PDEngine

    def __init__(
        self, args: Any, disaggregation_mode: Any, server_args: Any, is_mla_backend: bool | None = False
    ) -> None:
        self._watch: PrefillWatch | None = None
        self.last_send = LastSend()
        self.refusals: dict[str, str] = {}  # bootstrap addresses of prefill servers that do not fit, and why
        super().__init__(args, disaggregation_mode, server_args, is_mla_backend)
        if self.disaggregation_mode == DisaggregationMode.PREFILL:
            self.failed_sessions = LostSessions(self.engine.is_lost)

    def init_engine(self) -> None:
        """Start the engine; called before any thread of the manager."""
        prefill = self.disaggregation_mode == DisaggregationMode.PREFILL
        hello = Hello(self.local_ip, int(self.rank_port)) if prefill else None
        self.engine = PDEngine(device=get_device().device, hello=hello)
        self._errands = ThreadPoolExecutor(1, thread_name_prefix="kvferry-errands")
        # Connecting to a server that is gone takes seconds; nothing else waits for that.
        self._greetings = ThreadPoolExecutor(1, thread_name_prefix="kvferry-greetings")
        if not prefill:
            self._watch = PrefillWatch(self.engine.engine, self._prefill_lost)
        logger.info("kvferry %s listens at %s", self.disaggregation_mode.value, self.get_session_id())

    def register_buffer_to_engine(self) -> None:
        """Register KV, state and metadata buffers, once: a decode server's to be written, a prefill server's
        to be sent from."""
        access: Access = "r" if self.disaggregation_mode == DisaggregationMode.PREFILL else "w"
        metadata = set(zip(self.kv_args.aux_data_ptrs, self.kv_args.aux_data_lens, strict=True))
        regions = self._registerable_regions()
        device = [region for region in regions if region not in metadata]
        self.engine.register(device, access=access, device=get_device().device)
        self.engine.register(metadata, access=access, device="cpu")

    def deregister_buffer_to_engine(self) -> None:
        """End the engine, and with it every registration; the last step of `teardown`."""
        if self._watch is not None:
            self._watch.close()
        for executor in (self._errands, self._greetings):
            executor.shutdown(wait=False, cancel_futures=True)
        self.engine.close()
        if hasattr(self, "connection_pool"):
            with self.connection_lock:
                self.connection_pool.clear()

    # Sending.

    def _transfer_data(self, session: str, triples: Sequence[tuple[int, int, int]]) -> int:
        return self.last_send.add(self.engine.write(session, blocks(triples)))

    def _await_transfer_futures(self, futures: Sequence[Future[int]]) -> int:
        return self.last_send.add(worst_of(futures))

    @one_request_only
    def send_kvcache(  # noqa: PLR0917  (SGLang's own signature)
        self,
        session: str,
        prefill_kv_indices: Any,
        dst_kv_ptrs: list[int],
        dst_kv_indices: Any,
        executor: Any,
        dst_layer_ids: list[int] | None = None,
        dst_device_kv_indices: Any = None,
        dst_kv_item_len: int | None = None,
        dst_attn_tp_size: int | None = None,
    ) -> int:
        """Send whole pages of all layers as one transfer."""
        if dst_device_kv_indices is not None or get_memory().enable_unified_memory:
            status: int = super().send_kvcache(
                session,
                prefill_kv_indices,
                dst_kv_ptrs,
                dst_kv_indices,
                executor,
                dst_layer_ids,
                dst_device_kv_indices,
                dst_kv_item_len,
                dst_attn_tp_size,
            )
            return status
        entries = self._entries(dst_kv_ptrs, dst_layer_ids or [])
        if self.pp_size == 1 and entries and dst_kv_item_len not in (None, 0, entries[0].page_bytes):
            raise ValueError(
                f"a page of a layer has {entries[0].page_bytes} bytes here, {dst_kv_item_len} on the decode "
                "server: page size, dtype and heads must be the same on both"
            )
        return self.engine.write(session, whole_pages(entries, prefill_kv_indices, dst_kv_indices))

    def _entries(self, dst_ptrs: list[int], dst_layer_ids: list[int]) -> list[Entry]:
        """Pair our KV buffers with the decode server's, as `MooncakeKVManager._send_kvcache_generic` does."""
        args = self.kv_args
        lengths = args.kv_item_lens
        if self.is_mla_backend or self.is_hybrid_mla_backend or args.kv_layer_ids or dst_layer_ids:
            source, target = args.kv_data_ptrs, dst_ptrs
            if args.kv_layer_ids or dst_layer_ids:
                pairs = self._by_layer(dst_layer_ids, len(dst_ptrs))
            else:
                source, target, count = self.get_mla_kv_ptrs_with_pp(source, target)
                pairs = [(index, index) for index in range(count)]
            return [Entry(source[i], target[j], lengths[i]) for i, j in pairs if lengths[i]]
        source_k, source_v, target_k, target_v, count = self.get_mha_kv_ptrs_with_pp(
            args.kv_data_ptrs, dst_ptrs
        )
        keys = zip(source_k, target_k, lengths[:count], strict=True)
        values = zip(source_v, target_v, lengths[count : 2 * count], strict=True)
        return [Entry(*entry) for entry in (*keys, *values)]

    def _by_layer(self, dst_layer_ids: list[int], targets: int) -> list[tuple[int, int]]:
        pairs: list[tuple[int, int]] = build_transfer_entry_pairs(
            self.kv_args.kv_layer_ids,
            dst_layer_ids,
            len(self.kv_args.kv_data_ptrs),
            targets,
            allow_positional_fallback=self.pp_size == 1,
        )
        return pairs

    @one_request_only
    def send_kvcache_slice(  # noqa: PLR0917  (SGLang's own signature)
        self,
        session: str,
        prefill_kv_indices: Any,
        dst_kv_ptrs: list[int],
        dst_kv_indices: Any,
        dst_tp_rank: int,
        dst_attn_tp_size: int,
        dst_kv_item_len: int,
        executor: Any,
        dst_layer_ids: list[int] | None = None,
    ) -> int:
        """Send the heads that a decode rank of another tensor parallelism holds, as one transfer."""
        args = self.kv_args
        if len(set(args.kv_item_lens)) != 1:
            raise ValueError(
                f"the layers' KV buffers have pages of {sorted(set(args.kv_item_lens))} bytes: that is not "
                "supported between servers of unequal tensor parallelism"
            )
        if args.kv_layer_ids or dst_layer_ids:
            indices = self._by_layer(dst_layer_ids or [], len(dst_kv_ptrs))
            pairs = [(args.kv_data_ptrs[i], dst_kv_ptrs[j]) for i, j in indices]
        else:
            source_k, source_v, target_k, target_v, _ = self.get_mha_kv_ptrs_with_pp(
                args.kv_data_ptrs, dst_kv_ptrs
            )
            pairs = [*zip(source_k, target_k, strict=True), *zip(source_v, target_v, strict=True)]
        part = self._head_slice(dst_tp_rank, dst_attn_tp_size, dst_kv_item_len)
        pieces: Pieces = head_slices(pairs, prefill_kv_indices, dst_kv_indices, args.page_size, part)
        return self.engine.write(session, pieces)

    def _head_slice(self, dst_tp_rank: int, dst_attn_tp_size: int, dst_page_bytes: int) -> HeadSlice:
        args = self.kv_args
        heads = getattr(args, "total_kv_head_num", 0) or args.kv_head_num * self.attn_tp_size
        source_token, target_token = args.kv_item_lens[0] // args.page_size, dst_page_bytes // args.page_size
        head_bytes = target_token // max(1, heads // dst_attn_tp_size)
        source_head, count, target_head, _ = compute_head_slice_params(
            self.attn_tp_size, dst_attn_tp_size, args.engine_rank, dst_tp_rank, heads
        )
        part = HeadSlice(
            source_token, target_token, source_head * head_bytes, target_head * head_bytes, count * head_bytes
        )
        if part.source_offset + part.length > source_token or part.target_offset + part.length > target_token:
            raise ValueError(f"the heads of the two servers do not fit together: {part}")
        return part

    @one_request_only
    def send_aux(self, req: Any, prefill_aux_index: int, dst_aux_ptrs: list[int]) -> int:
        """Send a request's row of each metadata buffer; it goes last, since it says that all has arrived."""
        rows = zip(self.kv_args.aux_data_ptrs, self.kv_args.aux_item_lens, dst_aux_ptrs, strict=False)
        return self._transfer_data(
            req.mooncake_session_id,
            [
                (source + length * prefill_aux_index, target + length * req.dst_aux_index, length)
                for source, length, target in rows
            ],
        )

    send_kvcache_dcp = one_request_only(MooncakeKVManager.send_kvcache_dcp)
    maybe_send_extra = one_request_only(MooncakeKVManager.maybe_send_extra)

    # Failing.

    def conclude_failure(self, *, bootstrap_room: int, failure_reason: str, targets: Any = None) -> Any:
        """Add the cause to the reason, which goes to the decode server."""
        sessions = list(self.transfer_infos.get(bootstrap_room, ()))
        why = next(filter(None, map(self.engine.why, sessions)), "")
        return super().conclude_failure(
            bootstrap_room=bootstrap_room,
            failure_reason=f"{failure_reason}: {why}" if why else failure_reason,
            targets=targets,
        )

    def _poison_unsettled_send(self, room: int) -> None:
        # Our transfers are over when they have failed, unless nobody confirmed their end.
        if not self.last_send.take_over():
            super()._poison_unsettled_send(room)

    # Peers.

    def _publish_peer_registration(self, session: str, decode_kv_args: Any) -> str | None:
        mismatch: str | None = super()._publish_peer_registration(session, decode_kv_args)
        self._greetings.submit(self._greet, session)
        return mismatch

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """Learn a prefill server's shape; false, with a reason in `refusals`, where it does not fit ours.

        SGLang's own version raises then, in the scheduler's loop, which ends the decode server.
        """
        try:
            known: bool = super().try_ensure_parallel_info(bootstrap_addr)
        except (RuntimeError, AssertionError) as error:
            logger.error("prefill server %s does not fit this decode server: %s", bootstrap_addr, error)
            self.refusals[bootstrap_addr] = str(error)
            return False
        if known:
            self.refusals.pop(bootstrap_addr, None)
        return known

    def _greet(self, session: str) -> None:
        try:
            self.engine.reach(session)
        except KVFerryError as error:
            self.engine.note_failure(session, error)
            logger.warning("decode server %s: %s", session, self.engine.why(session))

    def _prefill_lost(self, hello: Hello) -> None:
        rank = (hello.rank_ip, hello.rank_port)
        with self.connection_lock:
            keys = [
                key
                for key, infos in self.connection_pool.items()
                if any((info.get("rank_ip"), int(info.get("rank_port", 0))) == rank for info in infos)
            ]
            servers = [
                address
                for address in self.prefill_info_table
                if any(key.startswith(f"{address}_") for key in keys)
            ]
        for address in servers:
            self._handle_node_failure(address)


class KVFerryKVSender(MooncakeKVSender):
    """One request on the prefill server."""

    # Page numbers are left on the device, and waited for by the worker thread, only where CUDA is.
    supports_host_tensor_indices = torch.cuda.is_available()

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *args: Any, **kwargs: Any) -> None:
        mgr.room_opened(bootstrap_room)
        super().__init__(mgr, bootstrap_addr, bootstrap_room, *args, **kwargs)

    def abort(self) -> None:
        """End the request, and tell the decode server, which would wait for it."""
        super().abort()
        self.kv_mgr.room_aborted(self.bootstrap_room)


class KVFerryKVReceiver(MooncakeKVReceiver):
    """One request on the decode server."""

    conclude_state: Any

    def abort(self) -> None:
        """End the request; with the reason where it is ended because its prefill server does not fit."""
        reason = self.kv_mgr.refusals.get(self.bootstrap_addr)
        if reason is not None and self.conclude_state is None:
            self.kv_mgr.record_failure(self.bootstrap_room, reason)
            self.kv_mgr.update_status(self.bootstrap_room, KVPoll.Failed)
            self.conclude_state = KVPoll.Failed
        super().abort()


class KVFerryKVBootstrapServer(MooncakeKVBootstrapServer):
    """Where decode servers find the ranks of a prefill server."""

"""Prefill and decode ranks of SGLang in one process: SGLang's own classes of a transfer backend, with pools
of numbers in place of a model's.

Runs in SGLang's environment (`pd_cases.py` is the program), so there is no pytest here.
"""

from __future__ import annotations

import itertools
import random
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

WAIT_S = 60.0
HOST = "127.0.0.1"
PAGES, PAGE, LAYERS, HEADS, HEAD_BYTES = 24, 4, 3, 4, 16
ROWS, ROW_BYTES = 8, 32  # of the metadata buffer
STATES, STATE_BYTES = 6, 64
FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)

_rooms = itertools.count(random.randrange(1 << 40))


def prepare_sglang(bootstrap_port: int) -> None:
    """Load the plug-ins and publish a configuration, once per process."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    load_plugins()
    settings = {"model_path": "dummy", "device": "cpu", "host": HOST, "page_size": PAGE}
    settings["disaggregation_bootstrap_port"] = bootstrap_port
    publish(ServerArgs(**settings), role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None))


def until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> float:
    """Wait for a condition; return how long that took, in seconds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.002)
    return time.monotonic() - began


class Size(NamedTuple):
    """How large a server's KV pool is: pages of tokens, layers, heads of all ranks, bytes of a head."""

    pages: int = PAGES
    page: int = PAGE
    layers: int = LAYERS
    heads: int = HEADS
    head_bytes: int = HEAD_BYTES


def manager_class(backend: str) -> Any:
    """SGLang's manager of the backend `kvferry` or `mooncake`."""
    if backend == "mooncake":
        from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager
        from sglang.srt.distributed.device_communicators import mooncake_transfer_engine

        mooncake_transfer_engine.init_mooncake_transfer_engine(HOST)
        return MooncakeKVManager
    from kvferry_sglang.pd.conn import KVFerryKVManager

    return KVFerryKVManager


class Rank:
    """One rank of a server: its pools, and SGLang's manager over them."""

    def __init__(
        self,
        mode: str,
        *,
        tp_rank: int = 0,
        tp_size: int = 1,
        mla: bool = False,
        states: Sequence[str] = (),
        size: Size | None = None,
        backend: str = "kvferry",
    ) -> None:
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.runtime_context import get_parallel

        self.mode, self.tp_rank, self.tp_size, self.mla = mode, tp_rank, tp_size, mla
        self.size = size = size or Size()
        self.backend = backend
        self.heads = 1 if mla else size.heads // tp_size
        kinds = 1 if mla else 2
        shape = (size.pages, size.page, self.heads, size.head_bytes)
        self.kv = [np.zeros(shape, np.uint8) for _ in range(kinds * size.layers)]
        self.metadata = np.zeros((ROWS, ROW_BYTES), np.uint8)
        self.states = {kind: [np.zeros((STATES, STATE_BYTES), np.uint8) for _ in range(2)] for kind in states}
        topology = {
            **dict.fromkeys(("attn_tp_size", "tp_size", "moe_tp_size"), tp_size),
            **dict.fromkeys(("attn_tp_rank", "tp_rank", "moe_tp_rank"), tp_rank),
        }
        group = SimpleNamespace(rank_in_group=tp_rank, world_size=tp_size)
        with get_parallel().override(**topology, pp_group=None, tp_group=group, attn_tp_group=group):
            self.manager: Any = manager_class(backend)(
                self._arguments(),
                DisaggregationMode(mode),
                SimpleNamespace(enable_pd_role_switch=True),
                is_mla_backend=mla,
            )
        self.writes: list[int] = []  # pieces of each plan of KVFerry's
        if backend == "kvferry":
            self._count_plans(self.manager.engine)

    def _count_plans(self, engine: Any) -> None:
        write = engine.write

        def counted(session: str, pieces: Any) -> int:
            self.writes.append(int(pieces.lengths.size))
            status: int = write(session, pieces)
            return status

        engine.write = counted

    def _arguments(self) -> Any:
        from sglang.srt.disaggregation.base.conn import KVArgs, StateType

        def addresses(buffers: Sequence[np.ndarray]) -> tuple[list[int], list[int], list[int]]:
            each = [(b.ctypes.data, b.nbytes, b[0].nbytes) for b in buffers]
            return tuple(list(column) for column in zip(*each, strict=True))  # type: ignore[return-value]

        args = KVArgs()
        args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens = addresses(self.kv)
        args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = addresses([self.metadata])
        states = [addresses(buffers) for buffers in self.states.values()]
        args.state_types = [StateType(kind) for kind in self.states]
        args.state_data_ptrs = [state[0] for state in states]
        args.state_data_lens = [state[1] for state in states]
        args.state_item_lens = [state[2] for state in states]
        nothing: list[list[int]] = [[] for _ in states]
        args.state_layer_ids = args.state_dim_per_tensor = args.state_slice_outer_counts = nothing
        args.state_conv_shard_groups = nothing
        args.kv_layer_ids, args.kv_cache_dtype_str, args.kv_layout = [], "float32", None
        args.engine_rank, args.pp_rank, args.system_dp_rank, args.gpu_id = self.tp_rank, 0, 0, 0
        args.kv_head_num, args.total_kv_head_num, args.page_size = self.heads, self.size.heads, self.size.page
        args.prefill_start_layer, args.prefill_end_layer = 0, self.size.layers
        args.is_hybrid_mla_backend, args.ib_device, args.swa_kv_cache_layout = False, "", None
        args.mla_compression_ratios = args.rust_http_port = None
        args.kv_buf_groups = args.hidden_kv_layers = args.draft_kv_layers = 0
        return args

    def fill(self, seed: int) -> None:
        """Put other bytes into every byte of every pool; all ranks of a server have the same metadata."""
        random = np.random.default_rng(seed)
        for buffer in (*self.kv, *itertools.chain(*self.states.values())):
            buffer[...] = random.integers(1, 255, buffer.shape, np.uint8)
        self.metadata[...] = np.arange(ROWS)[:, None] + 1

    def end(self) -> None:
        self.manager.teardown()


class World:
    """A bootstrap server, prefill ranks and decode ranks."""

    def __init__(self, port: int) -> None:
        from kvferry_sglang.pd import conn

        self.address = f"{HOST}:{port}"
        self.bootstrap = conn.KVFerryKVBootstrapServer(HOST, port)
        self.ranks: list[Rank] = []
        until(self._answers, "the bootstrap server")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def prefill(self, tp_size: int = 1, **options: Any) -> list[Rank]:
        return self._server("prefill", tp_size, options)

    def decode(self, tp_size: int = 1, **options: Any) -> list[Rank]:
        return self._server("decode", tp_size, options)

    def _server(self, mode: str, tp_size: int, options: dict[str, Any]) -> list[Rank]:
        made = [Rank(mode, tp_rank=rank, tp_size=tp_size, **options) for rank in range(tp_size)]
        for rank in made:
            rank.fill(100 + rank.tp_rank * (not rank.mla)) if mode == "prefill" else None
        self.ranks += made
        return made

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()
        self.bootstrap.close()


@contextmanager
def world(port: int) -> Iterator[World]:
    """A world of its own for a case."""
    made = World(port)
    try:
        yield made
    finally:
        made.end()


class Request:
    """One request, on all ranks of a prefill and a decode server."""

    def __init__(
        self,
        world: World,
        prefill: Sequence[Rank],
        decode: Sequence[Rank],
        near: Sequence[int],
        far: Sequence[int],
        *,
        row: int = 1,
    ) -> None:
        from kvferry_sglang.pd import conn

        self.room = next(_rooms)
        self.near, self.far, self.row = np.array(near, np.int32), np.array(far, np.int32), row
        self.address = world.address
        self.prefill, self.decode = prefill, decode
        self.senders = [conn.KVFerryKVSender(rank.manager, world.address, self.room) for rank in prefill]
        for sender in self.senders:
            sender.init(len(near), row)
        self.receivers: list[Any] = []

    def receive(self, *, states: Sequence[Sequence[int]] | None = None, prefix: int = 0) -> Request:
        """Have the decode server say where everything goes, and wait until the prefill server knows."""
        from kvferry_sglang.pd import conn

        for rank in self.decode:
            until(lambda rank=rank: rank.manager.try_ensure_parallel_info(self.address), "the topology")
            receiver = conn.KVFerryKVReceiver(rank.manager, self.address, self.room)
            receiver.init(0)
            receiver.send_metadata(self.far, self.row, states, prefix)
            self.receivers.append(receiver)
        until(lambda: self.status() in ({WAITING}, {FAILED}), "the prefill server's readiness")
        return self

    def send(self, begin: int = 0, end: int | None = None, states: Any = None) -> Request:
        """Send pages of the prompt; the last of them with the states and the metadata."""
        for sender in self.senders:
            sender.send(self.near[begin:end], states)
        return self

    def status(self) -> set[int]:
        return {int(sender.poll()) for sender in self.senders}

    def outcome(self) -> set[int]:
        return {int(receiver.poll()) for receiver in self.receivers}

    def done(self) -> Request:
        """Wait until both sides have succeeded, and check where every byte has gone."""
        until(lambda: self.status() == {SUCCESS}, f"success of the prefill server, not {self.status()}")
        until(lambda: self.outcome() == {SUCCESS}, f"success of the decode server, not {self.outcome()}")
        self.check()
        return self

    def check(self) -> None:
        """Compare the decode server's pages with the prefill server's, heads put together."""
        for layer in range(len(self.prefill[0].kv)):
            sent, got = (
                server[0].kv[layer][pages]
                if server[0].mla
                else np.concatenate([rank.kv[layer][pages] for rank in server], axis=2)
                for server, pages in ((self.prefill, self.near), (self.decode, self.far))
            )
            assert (sent == got).all(), f"buffer {layer} differs"
        for rank in self.decode:
            assert (rank.metadata[self.row] == self.prefill[0].metadata[self.row]).all(), "metadata differs"

    def untouched(self) -> None:
        """Check that nothing was written but this request's pages."""
        others = np.setdiff1d(np.arange(PAGES), self.far)
        for rank in self.decode:
            assert not any(buffer[others].any() for buffer in rank.kv), "other pages were written"

    def failed(self, timeout_s: float = WAIT_S) -> str:
        """Wait until the decode server gives the request up; return the reason that its client would get."""
        from sglang.srt.disaggregation.common.conn import KVTransferError

        until(lambda: self.outcome() == {FAILED}, "the request's failure", timeout_s)
        try:
            self.receivers[0].failure_exception()
        except KVTransferError as error:
            return error.failure_reason
        raise AssertionError("a failed request has no reason")

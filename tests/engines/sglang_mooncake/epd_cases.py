"""SGLang's own encoder disaggregation with its backend `mooncake`, unchanged, over the stand-in for Mooncake.

A program for SGLang's environment. An encoder in a process of its own: SGLang's HTTP endpoints, and its
`MMEncoder` with numbers in place of what a vision model would compute. Here the scheduler's half, SGLang's
`WaitingRDMARequest` and `EmbeddingPool`. Embeddings go from the one process's memory into the other's by the
module `mooncake`. Runs all cases, writes a line of JSON for each.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import sys
import time
import traceback
import types
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engines.sglang_inprocess.pd_world import HOST, prepare_sglang, until

DIM, TOKENS = 96, (5, 300, 41)
POOL_BYTES = 1 << 20
CASES: dict[str, Callable[[Scheduler], None]] = {}


def case(function: Callable[[Scheduler], None]) -> Callable[[Scheduler], None]:
    CASES[function.__name__] = function
    return function


def embedding(name: str) -> torch.Tensor:
    """What a model would have computed for one part of a request: the same in both processes."""
    seed = sum(name.encode()) * 1000 + len(name)
    tokens = TOKENS[int(name.rsplit("_", 1)[1]) % len(TOKENS)]
    return torch.randn(tokens, DIM, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def use_mooncake_backend() -> None:
    """What the command line would say, memory of the host where there is no GPU, and no vision model, whose
    file asks for kernels that are not there.
    """
    vision = types.ModuleType("sglang.srt.multimodal.processors.qwen_vl")
    vision.preprocess_video = None  # type: ignore[attr-defined]
    sys.modules[vision.__name__] = vision
    from sglang.srt.disaggregation.encoder import receiver, server

    server.get_disagg = lambda: SimpleNamespace(encoder_transfer_backend="mooncake")
    empty = torch.empty

    def on_the_host(*shape: Any, device: Any = None, **more: Any) -> torch.Tensor:
        return empty(*shape, **more, device="cpu" if str(device).startswith("cuda") else device)

    receiver.torch = SimpleNamespace(**{**vars(torch), "empty": on_the_host})


def serve(port: int) -> None:
    """Be the encoder until the process is killed."""
    import uvicorn
    from sglang.srt.disaggregation.encoder import http_server, server
    from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine
    from sglang.srt.managers.schedule_batch import Modality

    class Encoder(server.MMEncoder):  # type: ignore[misc]
        def __init__(self) -> None:
            # What MMEncoder's own constructor makes, but for the model and the processes around it.
            import concurrent.futures

            import zmq

            self.rank, self.transfer_backend, self.use_mooncake = 0, "mooncake", True
            self.engine = MooncakeTransferEngine(HOST)
            self.executor = concurrent.futures.ThreadPoolExecutor(4)
            self.sync_context = zmq.Context()
            self.send_timeout, self.profiler, self.mm_global_cache = 30.0, None, None
            self._element_size = torch.tensor([], dtype=torch.bfloat16).element_size()
            self.req_states: dict[str, Any] = {}
            self.abandoned_req_ids: set[str] = set()
            self.background_tasks: set[Any] = set()
            self.delivery = server.MooncakeDelivery(self)
            server.meta_registry.on_release = self.release_request

        async def _prepare_encode_context_on_all_ranks(self, requests: Any, modality: Any, **_: Any) -> Any:
            parts = [embedding(each["req_id"]) for each in requests]
            found = SimpleNamespace(
                token_counts=[len(part) for part in parts],
                grid_thw=torch.tensor([[1, 1, len(part)] for part in parts]),
            )
            return SimpleNamespace(
                req_id=requests[0]["req_id"], modality=modality, preprocess_result=found,
                items_per_req=[1] * len(requests), aux_data={}, use_global_cache=False,
                embeddings=torch.cat(parts),
            )  # fmt: skip

        async def _compute_embedding(self, ctx: Any, *, keep_on_gpu: bool) -> torch.Tensor:
            return ctx.embeddings

    encoder = http_server.encoder = Encoder()

    @http_server.app.post("/test_encode")  # type: ignore[untyped-decorator]
    async def test_encode(request: dict[str, Any]) -> list[str]:
        """Encode, as the queue behind SGLang's `/encode` has it done."""
        requests = request["requests"]
        results = await encoder.batch_encode(requests, Modality.IMAGE)
        for each, (size, length, dim, error, _) in zip(requests, results, strict=True):
            await server.meta_registry.publish(each["req_id"], size, length, dim, error)
        return list(encoder.req_states)

    @http_server.app.get("/test_left")  # type: ignore[untyped-decorator]
    async def test_left() -> list[str]:
        return list(encoder.req_states)

    config = uvicorn.Config(http_server.app, HOST, port, log_level="warning", lifespan="off")
    asyncio.run(uvicorn.Server(config).serve())


class Inputs:
    """What a processor of SGLang's makes of a prompt and its embeddings."""

    def __init__(self, input_ids: list[int], found: dict[Any, torch.Tensor]) -> None:
        self.input_ids, self.found, self.mm_items = input_ids, found, []  # type: ignore[var-annotated]


class Scheduler:
    """The scheduler's half: a rank with a registered pool, and the encoder that it asks."""

    def __init__(self, url: str) -> None:
        from sglang.srt.disaggregation.encoder.receiver import EmbeddingPool
        from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import (
            MooncakeTransferEngine,
        )

        self.url = url
        self.engine = MooncakeTransferEngine(HOST)
        self.pool = EmbeddingPool(0, POOL_BYTES, self.engine)

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def encode(self, rid: str, parts: int) -> None:
        """Have the encoder compute all parts of a request, together."""
        from sglang.srt.disaggregation.encoder.receiver import create_part_req_id

        names = [create_part_req_id(rid, part) for part in range(parts)]
        requests = [
            {"req_id": name, "num_parts": parts, "part_idx": part, "mm_items": []}
            for part, name in enumerate(names)
        ]
        self.call("/test_encode", {"requests": requests})

    def waiting(self, rid: str, parts: int, *, pooled: bool = True, ranks: int = 1) -> Any:
        """SGLang's request that waits for embeddings; it has begun to."""
        from sglang.srt.disaggregation.encoder.receiver import WaitingRDMARequest
        from sglang.srt.managers.schedule_batch import Modality

        def get_validated_mm_data(prompt: Any, found: Any, **_: Any) -> Any:
            return Inputs(prompt, found)

        processor = SimpleNamespace(prefer_tokenized_input=True, get_validated_mm_data=get_validated_mm_data)
        request = SimpleNamespace(
            rid=rid, num_items_assigned={Modality.IMAGE: [1] * parts}, input_ids=[1, 2, 3], input_text=None
        )
        made = WaitingRDMARequest(
            rid=rid, recv_req=request, mm_processor=processor, encoder_urls=[self.url] * parts,
            host_name=HOST, receive_count=ranks, zmq_context=None, embeddings_engine=self.engine,
            dtype=torch.bfloat16, embedding_pool=self.pool if pooled else None,
        )  # fmt: skip
        made.send_encode_request()
        return made

    def left(self) -> list[str]:
        """Requests whose embeddings the encoder still has."""
        found: list[str] = self.call("/test_left")
        return found


def finish(waiting: Any) -> Any:
    """Poll as the scheduler does until the request has its embeddings, or has failed."""

    def settled() -> bool:
        waiting._try_recv_mm_data()
        return int(waiting.status) != 0

    until(settled, "embeddings")
    return waiting.status


def check(waiting: Any, parts: int) -> None:
    """Every number of every part is where it belongs."""
    from sglang.srt.disaggregation.encoder.receiver import WaitingMMRequestStatus, create_part_req_id
    from sglang.srt.managers.schedule_batch import Modality

    assert finish(waiting) is WaitingMMRequestStatus.SUCCESS, waiting.error_msg
    expected = torch.cat([embedding(create_part_req_id(waiting.rid, part)) for part in range(parts)])
    found = waiting.recv_req.mm_inputs.found[Modality.IMAGE]
    assert found.shape == expected.shape, found.shape
    assert torch.equal(found, expected)


@case
def an_embedding_arrives_in_the_registered_pool(scheduler: Scheduler) -> None:
    scheduler.encode("one", 1)
    waiting = scheduler.waiting("one", 1)
    check(waiting, 1)
    found = next(iter(waiting.recv_req.mm_inputs.found.values()))
    assert scheduler.pool.base <= found.data_ptr() < scheduler.pool.base + POOL_BYTES
    until(lambda: not scheduler.left(), "the encoder's release")


@case
def parts_of_a_request_lie_side_by_side(scheduler: Scheduler) -> None:
    waiting = scheduler.waiting("three", 3)  # before they are computed
    scheduler.encode("three", 3)
    check(waiting, 3)


@case
def requests_at_once_and_one_after_another(scheduler: Scheduler) -> None:
    before = set(scheduler.pool._inflight)
    for turn in range(3):
        several = [scheduler.waiting(f"many{turn}{number}", 2) for number in range(4)]
        for number in range(4):
            scheduler.encode(f"many{turn}{number}", 2)
        for waiting in several:
            check(waiting, 2)
            waiting.release_resources()
    assert set(scheduler.pool._inflight) <= before


@case
def without_a_pool_each_request_registers_its_own_memory(scheduler: Scheduler) -> None:
    scheduler.encode("own", 2)
    check(scheduler.waiting("own", 2, pooled=False), 2)


@case
def two_ranks_get_the_same_embedding(scheduler: Scheduler) -> None:
    scheduler.encode("ranks", 1)
    first, second = (scheduler.waiting("ranks", 1, ranks=2) for _ in range(2))
    check(first, 1)
    check(second, 1)
    until(lambda: not scheduler.left(), "the encoder's release after both")


@case
def memory_that_is_not_registered_gets_nothing(scheduler: Scheduler) -> None:
    """An address that the scheduler did not offer fails the request, and no byte is written."""
    from sglang.srt.disaggregation.encoder.receiver import WaitingMMRequestStatus

    scheduler.encode("astray", 1)
    elsewhere = torch.zeros(POOL_BYTES, dtype=torch.uint8)
    pool, alloc = scheduler.pool, scheduler.pool.alloc
    pool.alloc = lambda size: (elsewhere[:size], elsewhere.data_ptr(), -1)  # type: ignore[method-assign]
    try:
        waiting = scheduler.waiting("astray", 1)
        assert finish(waiting) is WaitingMMRequestStatus.FAIL
    finally:
        pool.alloc = alloc  # type: ignore[method-assign]
    assert not elsewhere.any()
    scheduler.encode("after", 1)
    check(scheduler.waiting("after", 1), 1)


def run(answers: Any, url: str, names: Sequence[str]) -> None:
    scheduler = Scheduler(url)
    for name in names:
        error = ""
        try:
            CASES[name](scheduler)
        except Exception:  # noqa: BLE001  (told to the test)
            error = traceback.format_exc()
        answers.write(json.dumps({"case": name, "error": error}) + "\n")
        answers.flush()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    prepare_sglang(port)
    use_mooncake_backend()
    encoder = multiprocessing.get_context("fork").Process(target=serve, args=(port,), daemon=True)
    encoder.start()
    try:
        until(lambda: reachable(port), "the encoder's port")
        run(answers, f"http://{HOST}:{port}", list(CASES))
    finally:
        encoder.kill()
        encoder.join(10)
    os._exit(0)  # SGLang's threads do not end by themselves


def reachable(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1).close()
    except OSError:
        time.sleep(0.05)
        return False
    return True


if __name__ == "__main__":
    main()

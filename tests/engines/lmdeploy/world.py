"""LMDeploy's real disaggregation classes on a CPU: a prefill worker in a process of its own, and a decode
worker here.

For CPU runs only: CacheEngine asks for memory of a GPU, so pools are made on the host here, and streams do
nothing. All else is LMDeploy's: CacheEngine, its cache pools and plans, EngineP2PConnection, the messages. A
model is not needed: tests fill and check blocks.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import types
from typing import Any

import torch


class _Inert:
    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, _: str) -> Any:
        return lambda *_args, **_kwargs: None


torch.cuda.Stream = torch.cuda.Event = _Inert  # type: ignore[misc,assignment]
torch.cuda.current_stream = lambda *_args, **_kwargs: None  # type: ignore[assignment]

import lmdeploy.pytorch.engine.engine  # noqa: E402, F401  (the import of engine_conn alone is circular)
from lmdeploy.pytorch.backends.default import DefaultOpsBackend  # noqa: E402
from lmdeploy.pytorch.config import CacheConfig, ModelConfig  # noqa: E402
from lmdeploy.pytorch.disagg.config import DistServeEngineConfig, EngineRole  # noqa: E402
from lmdeploy.pytorch.disagg.conn.engine_conn import EngineP2PConnection  # noqa: E402
from lmdeploy.pytorch.disagg.conn.protocol import (  # noqa: E402
    DistServeConnectionRequest,
    DistServeInitRequest,
    DistServeInitResponse,
    MigrationProtocol,
)
from lmdeploy.pytorch.disagg.messages import MigrationExecutionBatch  # noqa: E402
from lmdeploy.pytorch.engine.cache_engine import CacheEngine  # noqa: E402
from lmdeploy.pytorch.engine.cache_engine import engine as _engine  # noqa: E402
from lmdeploy.pytorch.engine.cache_engine import plan as _plan  # noqa: E402
from lmdeploy.pytorch.engine.cache_engine import schema as _schema  # noqa: E402

from kvferry_lmdeploy import MIGRATION_BACKEND  # noqa: E402

BLOCK = 16
ANSWER_S = 60.0
PREFILL, DECODE = "http://127.0.0.1:1", "http://127.0.0.1:2"  # names of engines; LMDeploy's are such URLs
BLOCKS = {PREFILL: 24, DECODE: 40}

for _module in (_engine, _plan, _schema):
    if hasattr(_module, "get_backend"):
        _module.get_backend = lambda *_args, **_kwargs: DefaultOpsBackend
_allocate = _plan.BlockCachePlan.allocate
_plan.BlockCachePlan.allocate = lambda self, num_logical_blocks, device: _allocate(
    self, num_logical_blocks, "cpu" if str(device) == "cuda" else device
)


def use_mooncake() -> None:
    """Make workers with LMDeploy's own Mooncake backend, on a machine without a network card for it."""
    from lmdeploy.pytorch.disagg.backend import mooncake
    from lmdeploy.pytorch.disagg.config import MigrationBackend

    Worker.backend = MigrationBackend.Mooncake
    mooncake.get_rdma_nics = lambda: ["none"]
    mooncake.get_local_ip_by_remote = lambda: "127.0.0.1"


class Worker:
    """One engine's only worker, with what LMDeploy's HTTP endpoints call."""

    backend: Any = MIGRATION_BACKEND

    def __init__(self, name: str) -> None:
        self.name, self.blocks = name, BLOCKS[name]
        model = ModelConfig(
            hidden_size=64, num_layers=4, num_attention_heads=4, num_key_value_heads=2, bos_token_id=1,
            eos_token_id=[2], head_dim=16, dtype=torch.float16,
        )  # fmt: skip
        config = CacheConfig(
            max_batches=4, block_size=BLOCK, num_cpu_blocks=0, num_gpu_blocks=self.blocks,
            role=EngineRole.Prefill if name == PREFILL else EngineRole.Decode,
            migration_backend=self.backend,
        )  # fmt: skip
        plan = _plan.build_block_cache_plan(model, config, world_size=1)
        self.cache = CacheEngine(config, rank=0, tp_rank=0, cache_stream=object(), block_cache_plan=plan)
        self.freed: list[int] = []
        executor = types.SimpleNamespace(
            p2p_initialize=lambda request: [self.cache.p2p_initialize(request)],
            p2p_connect=self._connected,
        )
        engine = types.SimpleNamespace(executor=executor, end_session=self._end)
        self.connection = EngineP2PConnection(engine)

    def _connected(self, remote_engine_id: str, conn_request: list[Any]) -> None:
        self.cache.p2p_connect(remote_engine_id, conn_request)

    def _end(self, session_id: int) -> bool:
        self.freed.append(session_id)
        return True

    @property
    def config(self) -> DistServeEngineConfig:
        return DistServeEngineConfig(
            tp_size=1, ep_size=1, dp_size=1, pp_size=None, dp_rank=0, block_size=BLOCK, num_cpu_blocks=0,
            num_gpu_blocks=self.blocks,
        )  # fmt: skip

    def initialize(self, remote: str, config: str) -> str:
        """As POST /distserve/p2p_initialize; JSON in and out."""
        request = DistServeInitRequest(
            local_engine_id=self.name, local_engine_config=self.config, remote_engine_id=remote,
            remote_engine_config=DistServeEngineConfig.model_validate_json(config),
            protocol=MigrationProtocol.RDMA,
        )  # fmt: skip
        return str(self.connection.p2p_initialize(request).model_dump_json())

    def connect(self, remote: str, answer: str) -> None:
        """As POST /distserve/p2p_connect, with the other engine's answer to `initialize`."""
        found = DistServeInitResponse.model_validate_json(answer)
        self.connection.p2p_connect(
            DistServeConnectionRequest(
                protocol=MigrationProtocol.RDMA,
                remote_engine_id=remote,
                remote_engine_endpoint_info=found.engine_endpoint_info,
                remote_kvtransfer_endpoint_info=found.kvtransfer_endpoint_info,
            )
        )

    def fill(self, blocks: dict[int, int], rest: int = 0) -> None:
        """Give blocks a value each, by id, and `rest` to all others."""
        for pool in self.cache.gpu_allocation.pools:
            pool.tensor.fill_(rest)
            for block, value in blocks.items():
                pool.tensor.select(pool.entry_axis, block).fill_(value)

    def values(self) -> list[int]:
        """The value of each byte of each block, -1 if they differ."""
        found = []
        for block in range(self.blocks):
            parts = [pool.tensor.select(pool.entry_axis, block) for pool in self.cache.gpu_allocation.pools]
            values = {int(part.min()) for part in parts} | {int(part.max()) for part in parts}
            found.append(values.pop() if len(values) == 1 else -1)
        return found

    async def migrate(self, remote: str, pairs: list[tuple[int, int]]) -> None:
        """Pull blocks; pairs of remote and local ids."""
        await self.cache.migrate(
            MigrationExecutionBatch(protocol=MigrationProtocol.RDMA, requests=[(remote, pairs)])
        )


class Prefill:
    """A prefill worker in a process of its own, made by fork before there are threads."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the worker there, or read an attribute."""
        self._pipe.send((name, arguments))
        assert self._pipe.poll(ANSWER_S), f"the prefill worker does not answer {name}"
        ok, answer = self._pipe.recv()
        assert ok, answer
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.join(ANSWER_S)


def _serve(pipe: Any) -> None:
    async def loop() -> None:
        worker = Worker(PREFILL)
        while True:
            while not pipe.poll():
                await asyncio.sleep(0.005)  # LMDeploy's own tasks run meanwhile
            name, arguments = pipe.recv()
            try:
                found = getattr(worker, name)
                pipe.send((True, found(*arguments) if callable(found) else found))
            except Exception as error:  # noqa: BLE001  (told to the test)
                pipe.send((False, f"{type(error).__name__}: {error}"))

    asyncio.run(loop())


def link(prefill: Prefill, decode: Worker) -> None:
    """Do what LMDeploy's proxy does to connect two engines."""
    configs = {each: DistServeEngineConfig.model_dump_json(_config(each)) for each in BLOCKS}
    from_prefill = prefill.call("initialize", DECODE, configs[DECODE])
    from_decode = decode.initialize(PREFILL, configs[PREFILL])
    prefill.call("connect", DECODE, from_decode)
    decode.connect(PREFILL, from_prefill)


def _config(name: str) -> DistServeEngineConfig:
    return DistServeEngineConfig(
        tp_size=1, ep_size=1, dp_size=1, pp_size=None, dp_rank=0, block_size=BLOCK, num_cpu_blocks=0,
        num_gpu_blocks=BLOCKS[name],
    )  # fmt: skip

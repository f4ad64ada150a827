"""A program for SGLang's environment: its prefix tree, cache controller and host pools on our third level.

    hicache_cases.py save       # fills the pool, then ends
    hicache_cases.py load       # an engine that starts with empty caches finds everything again
    hicache_cases.py save CASE  # one of them
    hicache_cases.py fetch CASE # the same as load, from another host

Both make the same prompts and the same random bytes for their KV cache, from the case's name. Each case is a
line of JSON: {"case", "error"}. The engine is SGLang's own kit for tests of its tree.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import types
import unittest
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch

# The kit imports more of its helpers than this program needs.
sys.modules.setdefault("datasets", types.ModuleType("datasets"))
vars(sys.modules["datasets"]).update(load_dataset=None, Dataset=object)

from sglang.srt.plugins import load_plugins  # noqa: E402

load_plugins()

from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.kv_cache_builder import maybe_register_hicache_draft  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType  # noqa: E402
from sglang.srt.runtime_context import get_parallel, get_server_args  # noqa: E402
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler  # noqa: E402
from sglang.srt.speculative.base_spec_worker import HiCacheDraftMode  # noqa: E402
from sglang.test.kits.unified_radix_cache import fixtures  # noqa: E402
from sglang.test.kits.unified_radix_cache.config import CacheConfig  # noqa: E402
from sglang.test.kits.unified_radix_cache.storage import UnifiedRadixCacheStorageFixtures  # noqa: E402

from kvferry.errors import UnsupportedError  # noqa: E402
from kvferry_sglang.linker import KVFerryLinker  # noqa: E402

PAGES = 6
SOON_S = 60.0
FULL = CacheConfig(page_size=16, components=(ComponentType.FULL,), num_layers=4)
SLIDING = CacheConfig(
    page_size=16,
    components=(ComponentType.FULL, ComponentType.SWA),
    sliding_window_size=32,
    num_layers=8,
    full_attention_layer_ids=(3, 7),
)
STATES = CacheConfig(
    page_size=1,
    components=(ComponentType.FULL, ComponentType.MAMBA),
    num_layers=8,
    full_attention_layer_ids=(3, 7),
    max_context_len=512,
)
# A machine may be slow: no look-up is given up.
PATIENT = {"pool.lookup_timeout_s": 60, "pool.load_timeout_s": 60}
DYNAMIC = {"backend_name": "x", "module_path": "kvferry_sglang.hicache", "class_name": "KVFerryHiCache"}


class Case(NamedTuple):
    """How an engine is set up."""

    name: str
    model: CacheConfig
    layout: str
    backend: str = "kvferry"
    extra: dict[str, Any] = {}
    latent: bool = False  # one vector a token, the same on all ranks (MLA)
    draft: bool = False  # with a draft model's layers beside the model's own


LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
CASES = [
    *(Case(f"full {each}", FULL, each) for each in LAYOUTS),
    *(Case(f"sliding {each}", SLIDING, each) for each in LAYOUTS),
    Case("states page_first_direct", STATES, "page_first_direct"),
    *(Case(f"latent {each}", FULL, each, latent=True) for each in LAYOUTS[:3]),
    *(Case(f"draft {each}", FULL, each, draft=True) for each in LAYOUTS),
    Case("by class", FULL, "page_first", "dynamic", {**DYNAMIC, "interface_v1": 1}),
    Case("by buffers", FULL, "page_first", "dynamic", DYNAMIC),
    Case("shared host pool", FULL, "page_first", extra={"allocator": "shm"}),
]


def latent_pool(*, head_num: int, head_dim: int, **arguments: Any) -> MLATokenToKVPool:
    """A pool for latent attention in the place of one with heads."""
    return MLATokenToKVPool(kv_lora_rank=head_num * head_dim, qk_rope_head_dim=head_dim, **arguments)


def draft_pool(model: CacheConfig) -> MHATokenToKVPool:
    """The pool of a draft model of one layer, whose tokens have the same slots as the model's."""
    return MHATokenToKVPool(
        size=model.kv_size, page_size=model.page_size, dtype=model.dtype, head_num=1,
        head_dim=model.head_dim, layer_num=1, device="cpu", enable_memory_saver=False,
    )  # fmt: skip


class Engine(UnifiedRadixCacheStorageFixtures, unittest.TestCase):
    """One engine with its prefix tree; `doCleanups` ends it."""

    def runTest(self) -> None:
        """Nothing: the kit's helpers are used, its assertions hold."""

    drafts: tuple[MHATokenToKVPool, ...] = ()

    def build(self, case: Case) -> None:
        self.case, self.cfg = case, case.model
        pool = latent_pool if case.latent else MHATokenToKVPool
        with mock.patch.object(fixtures, "MHATokenToKVPool", pool):
            self.tree, self.allocator, self.requests = fixtures.build_fixture(case.model)

    def start(self, case: Case, **settings: Any) -> None:
        self.case, self.cfg = case, case.model
        with mock.patch.object(
            fixtures, "MHATokenToKVPool", latent_pool if case.latent else MHATokenToKVPool
        ):
            self.tree, self.allocator, self.requests = fixtures.build_fixture(case.model)
        override = get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1)
        override.__enter__()
        self.addCleanup(override.__exit__, None, None, None)
        ours = {"pool.namespace": case.name, **PATIENT, **case.extra, **settings}
        extra = {"prefetch_threshold": 1, **ours}
        args = ServerArgs(
            model_path="dummy",
            page_size=case.model.page_size,
            hicache_mem_layout=case.layout,
            hicache_io_backend="direct" if case.layout == "page_first_direct" else "kernel",
            hicache_write_policy="write_through",
            hicache_storage_backend=case.backend,
            hicache_storage_backend_extra_config=json.dumps(extra),
            hicache_storage_prefetch_policy="wait_complete",
        )
        args._mamba_cache_chunk_size = 64
        set_global_server_args_for_scheduler(args)
        self.tree.init_hicache(args, self.tree.cache_init_params)
        self.addCleanup(fixtures.drop_hicache_atexit_pin, self.tree)
        self.addCleanup(self.tree.release_host_resources)
        if case.draft:
            self.drafts = (draft_pool(case.model),)
            plan = types.SimpleNamespace(mode=HiCacheDraftMode.SIDECAR, device_pools=self.drafts)
            maybe_register_hicache_draft(tree_cache=self.tree, draft_plan=plan)
        self.tree.write_through_threshold = 1 << 30
        self.tree.load_back_threshold = 0
        controller = self.tree.cache_controller
        controller.prefetch_capacity_limit = max(
            controller.prefetch_capacity_limit, controller.mem_pool_host.size
        )
        self.addCleanup(controller.detach_storage_backend)

    @property
    def prompt(self) -> list[int]:
        return self._make_seq(1, PAGES)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every layer's keys and values, of the pools whose rows belong to tokens."""
        cache = self.allocator.get_kvcache()
        pools = [("full", getattr(cache, "full_kv_pool", cache))]
        if self.cfg.has_swa:
            pools.append(("swa", cache.swa_kv_pool))
        for kind, pool in (*pools, *(("full", each) for each in self.drafts)):
            for layer in range(pool.start_layer, pool.start_layer + pool.layer_num):
                yield kind, pool.get_key_buffer(layer)
                if not self.case.latent:  # whose values are a part of the keys
                    yield kind, pool.get_value_buffer(layer)

    def rows(self, node: Any) -> dict[str, torch.Tensor]:
        """Where the prompt's tokens are on the device, by pool; of sliding windows the last ones only."""
        found = {"full": self.tree.path_device_indices(node)}
        if self.cfg.has_swa:
            window = fixtures.node_device_value(self.tree, node, ComponentType.SWA)
            found["swa"] = torch.zeros(0, dtype=torch.int64) if window is None else window
        return found

    def content(self) -> Iterator[torch.Tensor]:
        """What the case's prompt has in each of `buffers`: [tokens, ...]."""
        chance = torch.Generator().manual_seed(zlib.crc32(self.case.name.encode()))
        for _, buffer in self.buffers():
            shape = (len(self.prompt), *buffer.shape[1:])
            yield torch.randn(shape, generator=chance).to(buffer.dtype)

    def compute(self) -> Any:
        """Put the prompt into the tree as if it had been computed; return its node."""
        self._insert(self.tree, self.allocator, self.requests, self.prompt)
        node = fixtures.match_prefix(self.tree, self.prompt).last_device_node
        rows = self.rows(node)
        for (kind, buffer), content in zip(self.buffers(), self.content(), strict=True):
            at = rows[kind]
            if len(at):
                buffer[at] = content[-len(at) :]
        return node

    def save(self) -> None:
        node = self.compute()
        self._backup_node(self.tree, node)
        self._write_path_to_l3(self.tree, node)
        self._flush_l3_backups(self.tree, timeout=SOON_S)

    def prefetch(self, name: str = "r") -> int:
        """Read what the third level has of the prompt into the host pools; return how many tokens."""
        request = CacheRequestHandle(name, 0)
        tokens = array("q", self.prompt)
        self.tree.prefetch_from_storage(request, self.tree.root_node_handle(), tokens, None, None)
        self._run_prefetch_to_completion(self.tree, request, timeout=SOON_S)
        found = fixtures.match_prefix(self.tree, self.prompt)
        return int(found.host_hit_length)

    def load(self) -> int:
        """Go on to the device; return how many tokens are there, whose bytes are what they should be."""
        found = fixtures.match_prefix(self.tree, self.prompt)
        self._load_back_node(self.tree, found.best_match_node, req=self._make_req(self.requests))
        node = fixtures.match_prefix(self.tree, self.prompt).last_device_node
        rows = self.rows(node)
        tokens = len(rows["full"])
        for number, ((kind, buffer), content) in enumerate(zip(self.buffers(), self.content(), strict=True)):
            at = rows[kind]
            assert len(at), f"nothing of {kind} was loaded"
            wanted = content[tokens - len(at) : tokens]
            assert torch.equal(buffer[at], wanted), f"other bytes in buffer {number}, {kind}"
        return tokens


@contextmanager
def running(case: Case, **settings: Any) -> Iterator[Engine]:
    engine = Engine()
    try:
        engine.start(case, **settings)
        yield engine
    finally:
        engine.doCleanups()


def save(case: Case) -> None:
    with running(case) as engine:
        engine.save()
        if "allocator" in case.extra:
            assert getattr(engine.tree.cache_controller.storage_host_pool, "fd", None), "no shared memory"


def load(case: Case) -> None:
    with running(case) as engine:
        assert engine.prefetch() == len(engine.prompt)
        assert engine.load() == len(engine.prompt)


def fetch(case: Case) -> None:
    """As `load`, from another host, whose node may be suspected for a moment if the machine stands still."""
    with running(case) as engine:
        deadline, tries = time.monotonic() + SOON_S, 1
        while engine.prefetch(f"r{tries}") != len(engine.prompt):
            assert time.monotonic() < deadline, f"nothing, or not all, in {tries} tries"
            tries += 1
            time.sleep(0.5)
        assert engine.load() == len(engine.prompt)


def nothing_of_others(case: Case) -> None:
    """An engine that differs in one thing finds nothing of what this case has saved."""
    others = [
        case._replace(layout=each) for each in ("layer_first", "page_first_direct") if each != case.layout
    ]
    others.append(
        case._replace(model=CacheConfig(page_size=32, components=case.model.components, num_layers=4))
    )
    for other in others:
        with running(other) as engine:
            assert engine.prefetch() == 0, other
    with running(case, **{"pool.namespace": "another"}) as engine:
        assert engine.prefetch() == 0


def failing_backend(case: Case) -> None:
    """With SGLang's own fault injector around it, a prompt is loaded rightly as a whole, or not at all."""
    with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.3), running(case) as engine:
        loaded = 0
        for number in range(100):  # each fails by itself in about one of two
            loaded = engine.prefetch(f"r{number}")
            assert loaded in {0, len(engine.prompt)}, loaded
            if loaded:
                break
        assert loaded, "nothing was ever loaded"
        assert engine.load() == len(engine.prompt)


def detach_and_attach(case: Case) -> None:
    with running(case) as engine:
        detached, words = engine.tree.detach_storage_backend()
        assert detached, words
        extra = json.dumps({"prefetch_threshold": 1, "pool.namespace": case.name, **PATIENT})
        attached, words = engine.tree.attach_storage_backend("kvferry", extra)
        assert attached, words
        engine.tree.cache_controller.prefetch_capacity_limit = engine.tree.cache_controller.mem_pool_host.size
        assert engine.prefetch() == len(engine.prompt)
        assert engine.load() == len(engine.prompt)
        refused, words = engine.tree.detach_storage_backend()
        assert refused, words
        attached, words = engine.tree.attach_storage_backend("kvferry", json.dumps({"store.drm": 1}))
        assert not attached, words
        assert "store.dram" in words, words


def clear(case: Case) -> None:
    with running(case) as engine:
        assert engine.prefetch() == len(engine.prompt)
        assert engine.tree.cache_controller.clear_storage_backend()
    with running(case) as engine:
        assert engine.prefetch() == 0


def linker_of(engine: Engine) -> KVFerryLinker:
    return KVFerryLinker(
        get_server_args(),
        engine.tree.cache_init_params,
        components=set(engine.case.model.components),
        extra_config={"pool.namespace": "direct", **PATIENT},
    )


@contextmanager
def direct(case: Case) -> Iterator[Engine]:
    """An engine whose cache has the pool right behind it, without a level in the host's memory."""
    engine = Engine()
    engine.build(case)
    with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1):
        engine.tree.init_cache_linker(linker_of(engine))
        try:
            yield engine
        finally:
            engine.tree.linker.close()
            engine.doCleanups()


def match(engine: Engine, request: Any) -> int:
    """Look the prompt up; return how many tokens of it the pool has."""
    key = RadixKey(array("q", engine.prompt))
    found = engine.tree.match_prefix(MatchPrefixParams(key=key, req=request))
    engine._apply_match_to_req(request, found)
    return int(found.host_hit_length)


def without_a_host_level(case: Case) -> None:
    with direct(case) as first, direct(case) as second:
        for _, buffer in first.buffers():
            buffer[:] = torch.randn(buffer.shape).to(buffer.dtype)
        first._insert(first.tree, first.allocator, first.requests, first.prompt)
        rows = first.rows(fixtures.match_prefix(first.tree, first.prompt).last_device_node)["full"]
        deadline = time.monotonic() + SOON_S
        while first.tree.linker.pending_offloads and time.monotonic() < deadline:
            first.tree.check_hicache_events()
            time.sleep(0.01)
        request = second._make_req(second.requests)
        assert match(second, request) == len(second.prompt)
        assert second.tree.linker.load_back(request)[0] == len(second.prompt)
        assert second.tree.ready_to_load_host_cache() >= 0
        loaded = second.tree.linker.private_load_indices[request.rid]
        assert second.tree.linker.finish_loads() == []
        for (_, there), (_, here) in zip(first.buffers(), second.buffers(), strict=True):
            assert torch.equal(there[rows], here[loaded])
        # what has left the pool meanwhile is computed
        late = second._make_req(second.requests)
        assert match(second, late) == len(second.prompt)
        second.tree.linker.cache_linker._storage.clear()
        assert second.tree.linker.load_back(late)[0] == 0
        assert match(second, second._make_req(second.requests)) == 0


def without_a_host_level_for_latent_attention(case: Case) -> None:
    without_a_host_level(case._replace(latent=True))


def in_memory_of_a_device(case: Case) -> None:
    """The linker says in one sentence that it cannot read there, and what can."""
    engine = Engine()
    engine.build(case)
    cache = engine.allocator.get_kvcache()
    cache.k_buffer = [each.to("meta") for each in cache.k_buffer]
    cache.v_buffer = [each.to("meta") for each in cache.v_buffer]
    said = "nothing"
    try:
        linker_of(engine)
    except UnsupportedError as error:
        said = str(error)
    finally:
        engine.doCleanups()
    assert "memory of kind meta" in said, said
    assert "--hicache-storage-backend kvferry" in said, said


def run(name: str, job: Callable[[Case], None], case: Case) -> None:
    try:
        job(case)
        error = ""
    except Exception as failure:  # noqa: BLE001  (whatever it is, it is what the case says)
        error = f"{type(failure).__name__}: {failure}"
        traceback.print_exc()
    print(json.dumps({"case": name, "error": error}), flush=True)


JOBS = (
    nothing_of_others,
    failing_backend,
    without_a_host_level,
    without_a_host_level_for_latent_attention,
    in_memory_of_a_device,
    detach_and_attach,
    clear,
)
OTHERS = {each.__name__: each for each in JOBS}


def main() -> None:
    mode, wanted = sys.argv[1], sys.argv[2:]
    for case in CASES:
        if not wanted or case.name in wanted:
            run(f"{mode} {case.name}", {"save": save, "load": load, "fetch": fetch}[mode], case)
    page_first = next(case for case in CASES if case.name == "full page_first")
    for name, job in OTHERS.items() if mode == "load" and not wanted else ():
        run(name, job, page_first)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the kit leaves threads behind that never end

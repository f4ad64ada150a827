"""Real vLLM engines for tests, without HTTP servers: imports vLLM once, then forks one process per engine.

Runs in the interpreter that holds vLLM and KVFerry. The first process reads lines `{"name", "socket", "llm",
"kv", "ec", "events", "namespace", "environ"}` and forks; each child connects to its unix socket and serves
the operations below, one JSON line each, stepping its engine in between as a server's loop would.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CLONE_NEWNET = 0x40000000  # Python has setns from 3.12 on
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the first sampling with options would compile for a minute
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
}


class EngineProcess:
    """One engine and the socket it is driven by."""

    def __init__(self, order: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import ECTransferConfig, KVEventsConfig, KVTransferConfig

        options: dict[str, Any] = {
            "enforce_eager": True,
            "max_model_len": 2048,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 512,  # long prompts are prefilled in chunks
            "num_gpu_blocks_override": 512,
            "dtype": "float32",
            "block_size": 32,
            "seed": 0,
            "disable_log_stats": False,
            **order["llm"],
        }
        if order["kv"]:
            options["kv_transfer_config"] = KVTransferConfig(
                **{"kv_connector": "KVFerryConnector", **order["kv"]}
            )
        if order.get("ec"):
            options["ec_transfer_config"] = ECTransferConfig(**order["ec"])
        if order.get("events"):
            options["kv_events_config"] = KVEventsConfig(**order["events"])
        self.llm = LLM(**options)
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.stepping = True
        self.longest_step_s = 0.0
        self.finished: dict[str, Any] = {}
        self.meter: Any = None

    def serve(self, path: str) -> None:
        """Answer operations until the socket closes."""
        with socket.socket(socket.AF_UNIX) as conn:
            conn.connect(path)
            reader = conn.makefile("r")
            conn.sendall(b'{"ready": true}\n')
            while True:
                busy = self.stepping and (self.scheduler.has_requests() or bool(self.core.batch_queue))
                if select.select([conn], [], [], 0.0 if busy else 0.02)[0]:
                    line = reader.readline()
                    if not line:
                        return
                    order = json.loads(line)
                    answer = getattr(self, f"do_{order.pop('op')}")(**order)
                    conn.sendall(json.dumps(answer).encode() + b"\n")
                elif busy:
                    self._step()

    def _step(self, pause_s: float = 0.001) -> None:
        started = time.monotonic()
        outputs = self.engine.step()
        self.longest_step_s = max(self.longest_step_s, time.monotonic() - started)
        for output in outputs:
            if output.finished:
                self.finished[output.request_id] = {
                    "tokens": list(output.outputs[0].token_ids),
                    "finish": output.outputs[0].finish_reason,
                    "params": output.kv_transfer_params,
                    "cached": output.num_cached_tokens,
                    "media": output.ec_transfer_params,
                }
        if not outputs:
            time.sleep(pause_s)

    def do_add(self, id: str, prompt: list[int], params: Any, **options: Any) -> None:  # noqa: A002
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=options["max_tokens"],
            temperature=0,
            ignore_eos=True,
            extra_args={"kv_transfer_params": params} if params is not None else None,
        )
        salted = {"cache_salt": options["salt"]} if "salt" in options else {}
        self.engine.add_request(id, {"prompt_token_ids": prompt, **salted}, sampling)

    def do_add_sounds(self, id: str, prompt: str, sounds: list[int], max_tokens: int, params: Any) -> None:  # noqa: A002
        """A prompt with sounds, each a second of a tone that its number tells, rising or not."""
        import numpy as np
        from vllm import SamplingParams

        time_s = np.arange(16000) / 16000
        phases = [100 * each * time_s + 200 * (each % 3) * time_s**2 for each in sounds]
        tones = [(np.sin(2 * np.pi * each).astype(np.float32), 16000) for each in phases]
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            ignore_eos=True,
            extra_args={"ec_transfer_params": params} if params is not None else None,
        )
        self.engine.add_request(id, {"prompt": prompt, "multi_modal_data": {"audio": tones}}, sampling)

    def do_add_images(self, id: str, prompt: str, images: list[int], max_tokens: int, params: Any) -> None:  # noqa: A002
        """A prompt with images, each of colours that its number tells."""
        import numpy as np
        from PIL import Image
        from vllm import SamplingParams

        pictures = [
            Image.fromarray(np.random.default_rng(each).integers(0, 256, (56, 56, 3), dtype=np.uint8))
            for each in images
        ]
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, extra_args=params)
        self.engine.add_request(id, {"prompt": prompt, "multi_modal_data": {"image": pictures}}, sampling)

    def do_cached_blocks(self) -> dict[str, int]:
        """The engine's own account of its prefix cache: copies by block hash, as events name blocks."""
        from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

        cached = self.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
        return {
            str(maybe_convert_block_hash(get_block_hash(key))): len(value) if isinstance(value, dict) else 1
            for key, value in cached.items()
        }

    def do_encoder_cache(self) -> list[str]:
        """What the worker's encoder cache holds, by digest of the medium."""
        return sorted(self._runner().encoder_cache)

    def do_count_encoded(self) -> int:
        """How many media the encoder has run on since this was first asked."""
        runner = self._runner()
        if not hasattr(runner, "encoded"):
            runner.encoded = 0
            run = runner.model.embed_multimodal

            def counting(*args: Any, **kwargs: Any) -> Any:
                outputs = run(*args, **kwargs)
                runner.encoded += len(outputs)
                return outputs

            runner.model.embed_multimodal = counting
        return int(runner.encoded)

    def do_guesses(self) -> list[list[list[int]]]:
        """What a draft has guessed since this was last asked: of each step, tokens by request."""
        drafter = self._runner().drafter
        if not hasattr(drafter, "guesses"):
            drafter.guesses = []
            propose = drafter.propose

            def noting(*args: Any, **kwargs: Any) -> Any:
                tokens = propose(*args, **kwargs)
                drafter.guesses.append(tokens.tolist())
                return tokens

            drafter.propose = noting
        guesses, drafter.guesses = drafter.guesses, []
        return list(guesses)

    def _runner(self) -> Any:
        return self.core.model_executor.driver_worker.worker.model_runner

    def do_timed(self, prompts: list[list[int]], max_tokens: int, params: Any = None) -> dict[str, Any]:
        """Answer prompts, nothing else going on.

        Returns the `seconds` until the last token; the processor time of this process, also of what it does
        after that (`cpu_s`), such as saving, and what of it the connector took (`connector_s`), if that is
        metered; and the last answer's `tokens`, `cached` and `params`.
        """
        metered = self.meter.seconds() if self.meter else 0.0
        started, cpu = time.monotonic(), time.process_time()
        for index, prompt in enumerate(prompts):
            self.do_add(f"timed-{started}-{index}", prompt, params, max_tokens=max_tokens)
        while self.scheduler.has_unfinished_requests():
            self._paced_step()
        seconds = time.monotonic() - started
        while params is None and self.scheduler.has_requests():  # else a lease may be what is left
            self._paced_step()
        (*_, answer) = (self.finished.pop(name) for name in list(self.finished) if name.startswith("timed-"))
        cpu = time.process_time() - cpu
        connector_s = self.meter.seconds() - metered if self.meter else 0.0
        return {**answer, "seconds": seconds, "cpu_s": cpu, "connector_s": connector_s}

    def do_meter_connector(self, thread_prefix: str) -> None:
        """From now on say what the connector takes of the processor time."""
        from connector_meter import ConnectorMeter

        self.meter = ConnectorMeter(type(self.scheduler.connector), thread_prefix=thread_prefix)

    def _paced_step(self) -> None:
        """A step as the loop of vLLM's own core makes it: where nothing runs, a millisecond for others."""
        self._step(0.0 if self.scheduler.running else 0.001)

    def do_abort(self, ids: list[str]) -> None:
        self.engine.abort_request(ids)

    def do_take(self) -> dict[str, Any]:
        finished, self.finished = self.finished, {}
        return finished

    def do_stepping(self, on: bool) -> None:
        self.stepping = on

    def do_step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def do_preempt(self) -> bool:
        """Take all running requests' blocks away; they are computed anew."""
        return bool(self.scheduler.reset_prefix_cache(reset_running_requests=True))

    def do_forget_prefixes(self) -> bool:
        return bool(self.scheduler.reset_prefix_cache())

    def do_forget_pool(self) -> bool:
        return bool(self.scheduler.reset_prefix_cache(reset_connector=True))

    def do_block_hash(self, **request: Any) -> str:
        """vLLM's hash of the first block of a request: `tokens`, and any of `lora`, `salt`, `media`."""
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils

        lora, media = request.get("lora"), request.get("media", [])
        stand_in = SimpleNamespace(
            lora_request=lora and SimpleNamespace(lora_name=lora[0], lora_path=lora[1]),
            cache_salt=request.get("salt"),
            prompt_embeds=None,
            mm_features=[
                SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=length))
                for name, offset, length in media
            ],
        )
        tokens = request["tokens"]
        extra, _ = kv_cache_utils.generate_block_hash_extra_keys(stand_in, 0, len(tokens), 0)
        hash_function = get_hash_fn_by_name(self.core.vllm_config.cache_config.prefix_caching_hash_algo)
        return kv_cache_utils.hash_block_tokens(hash_function, None, tokens, extra).hex()

    def do_state(self) -> dict[str, Any]:
        statuses = [request.status.name for request in self.scheduler.requests.values()]
        longest, self.longest_step_s = self.longest_step_s, 0.0
        return {
            "free": self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            "statuses": statuses,
            "longest_step_s": longest,
            "delivers": self.scheduler.requires_kv_delivery,
            "policy": self.core.vllm_config.kv_transfer_config
            and self.core.vllm_config.kv_transfer_config.kv_load_failure_policy,
            "metrics": self._metrics(),
        }

    def do_permute_blocks(self) -> None:
        """From now on loads take the right blocks in the wrong order: what a broken mapping would do."""
        from kvferry.handoff import sources

        right = sources.map_blocks

        def wrong(ours: Any, theirs: Any, local: Any, remote: Any, **options: Any) -> Any:
            return right(ours, theirs, local, [ids[::-1] for ids in remote], **options)

        sources.map_blocks = wrong

    def do_permute_pooled_blocks(self) -> None:
        """The same for loads from the pool."""
        from kvferry.pool import PoolWorker

        right = PoolWorker._runs

        def wrong(worker: Any, span: Any) -> Any:
            runs, sizes = right(worker, span)
            return runs._replace(addresses=runs.addresses[::-1].copy()), sizes

        PoolWorker._runs = wrong

    def do_trust_everything(self) -> None:
        """From now on every load counts as good, whatever the transfer engine says."""
        from kvferry.transfer import Transfer

        Transfer.raise_if_failed = lambda self: None

    def _metrics(self) -> dict[str, float]:
        from prometheus_client import REGISTRY

        found: dict[str, float] = {}
        for metric in REGISTRY.collect():
            for sample in metric.samples:
                if sample.name.endswith(("_total", "_count", "_sum")) and sample.name.startswith("vllm:"):
                    labels = {
                        key: value
                        for key, value in sample.labels.items()
                        if key not in ("engine", "model_name")
                    }
                    key = "|".join([sample.name.removeprefix("vllm:"), *labels.values()])
                    found[key] = found.get(key, 0.0) + sample.value
        return found


def enter_network(namespace: str) -> None:
    """Move this process, which has one thread, into another network namespace."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with Path(namespace).open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def bear_llvmlite() -> None:
    """Let vLLM 0.32 go through all modules with `vars(x).get` when it replaces kernels for a CPU: it dies of
    one in llvmlite, which LMCache imports by numba."""
    import vllm.triton_utils.dispatcher as dispatcher

    dispatcher.vars = lambda found: vars(found) if hasattr(vars(found), "get") else {}


def allow_layout(name: str) -> None:
    """Let vLLM's CPU backend lay its cache out otherwise than layer by layer: its kernels go by strides, and
    the inside of a block stays as it is; only its declaration says LBHNC alone."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.kv_cache_layout import KVCacheLayout

    layouts = (KVCacheLayout.LBHNC, KVCacheLayout[name])
    CPUAttentionBackend.supported_kv_cache_layouts = classmethod(lambda _: layouts)


def child(order: dict[str, Any]) -> None:
    with Path(order["log"]).open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    status = 1
    try:
        os.environ.update(order.get("environ") or {})
        if order.get("namespace"):
            enter_network(order["namespace"])
        if str(order["kv"].get("kv_connector", "")).startswith("LMCache"):
            bear_llvmlite()
        if "VLLM_KV_CACHE_LAYOUT" in os.environ:
            allow_layout(os.environ["VLLM_KV_CACHE_LAYOUT"])
        cores = os.sched_getaffinity(0)
        engine = EngineProcess(order)
        os.sched_setaffinity(0, cores)  # NixlConnector pins every engine to the machine's last core
        engine.serve(order["socket"])
        status = 0
    except Exception as error:
        traceback.print_exc()
        print(f"ENDED BY {type(error).__name__}: {error}", flush=True)
        raise
    finally:
        sys.stdout.flush()
        os._exit(status)  # without vLLM's own clean-up, which takes seconds


def main() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed children are not awaited
    import vllm.model_executor.models.llama
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(order)
        print(json.dumps({"pid": pid}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

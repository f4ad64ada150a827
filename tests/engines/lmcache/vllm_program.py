"""One vLLM in this process, with LMCache's connector to an LMCache server: prints the tokens it generates.

python vllm_program.py MODEL [PORT]    # without a port: vLLM alone
"""

from __future__ import annotations

import json
import os
import sys

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", LMCACHE_TRACK_USAGE="false",
    PYTHONHASHSEED="0", VLLM_LOGGING_LEVEL="WARNING", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
    TORCHDYNAMO_DISABLE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1",
)  # fmt: skip

PROMPT = [(7 * number) % 1900 + 3 for number in range(300)]


def main() -> None:
    import vllm.triton_utils.dispatcher as dispatcher
    from vllm import LLM, SamplingParams

    # vLLM 0.32 goes through all modules with vars(x).get when it replaces kernels for a CPU, and dies of what
    # is in llvmlite, which LMCache imports by numba.
    dispatcher.vars = lambda found: vars(found) if hasattr(vars(found), "get") else {}
    options = {}
    if len(sys.argv) > 2:
        options["kv_transfer_config"] = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": int(sys.argv[2]),
            },
        }
    llm = LLM(
        sys.argv[1], enforce_eager=True, max_model_len=512, dtype="float32", block_size=32, max_num_seqs=2,
        enable_prefix_caching=True, gpu_memory_utilization=0.2, **options,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    [answer] = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
    found = {"tokens": list(answer.outputs[0].token_ids), "cached": answer.num_cached_tokens}
    print("ANSWER", json.dumps(found), flush=True)
    os._exit(0)  # LMCache's threads do not end by themselves


if __name__ == "__main__":
    main()

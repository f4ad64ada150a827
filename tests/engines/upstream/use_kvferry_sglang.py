"""A pytest plugin for SGLang's own tests of its servers: they start on a CPU, with KVFerry's backends.

Run by `tools/upstream_sglang_tests.py`, which starts a node for them. The tests launch servers by a few
functions of `sglang.test.test_utils`; the command line is changed there: a tiny model, the flags that a CPU
needs, our backends' names. What the tests then ask and assert is theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MODEL = os.environ.get("KVFERRY_UPSTREAM_MODEL", "")
# What a GPU's memory, device or kernels ask for.
_DROPPED = {
    "--mem-fraction-static",
    "--hicache-size",
    "--base-gpu-id",
    "--device",
    "--disaggregation-ib-device",
}
_DROPPED_WORDS = {"--disable-cuda-graph", "--trust-remote-code"}
_CPU = (
    "--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--max-total-tokens",
    "40960", "--disable-overlap-schedule", "--cuda-graph-backend-decode", "disabled",
    "--cuda-graph-backend-prefill", "disabled", "--context-length", "32768", "--allow-auto-truncate",
)  # fmt: skip
_ENVIRON = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
_OURS = {
    "--model-path": MODEL,
    "--model": MODEL,
    "--hicache-storage-backend": "kvferry",
    "--disaggregation-transfer-backend": "kvferry",
    "--hicache-io-backend": "kernel",
}


def pytest_configure() -> None:
    """Change how servers are launched, and which tokenizer prompts are made with."""
    import sglang.benchmark.utils as benchmark
    import sglang.test.test_utils as tests

    popen, checked = tests._subprocess_popen_with_outputs, tests.popen_with_error_check

    def launched(command: Sequence[str], env: Mapping[str, str] | None, *rest: Any, **more: Any) -> Any:
        return popen(on_a_cpu(command), {**(env or os.environ), **_ENVIRON}, *rest, **more)

    def balanced(command: Sequence[str], *rest: Any, **more: Any) -> Any:
        return checked([sys.executable if word == "python3" else word for word in command], *rest, **more)

    tests._subprocess_popen_with_outputs = launched
    tests.popen_with_error_check = balanced
    tokenizer = benchmark.get_tokenizer
    benchmark.get_tokenizer = lambda _name, **more: tokenizer(MODEL, **more)


def on_a_cpu(command: Sequence[str]) -> list[str]:
    """Return the command line of a server as it can run here."""
    words = list(command)
    words = words[2:] if words[:2] == ["sglang", "serve"] else words[3:]
    changed: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        valued = at + 1 < len(words) and not words[at + 1].startswith("--")
        if word in _DROPPED:
            at += 2
        elif word in _DROPPED_WORDS:
            at += 1
        elif word in _OURS and valued:
            changed += [word, _OURS[word]]
            at += 2
        else:
            changed.append(word)
            at += 1
    return [sys.executable, "-m", "sglang.launch_server", *changed, *_CPU]

"""How much of the time for moving a long prompt's KV cache is hidden behind its computation.

    python benchmarks/vllm_streaming.py [--json FILE] [--model NAME] [--rounds N] [--tokens N] [--delay MS]

Two real vLLM engines on this machine, one that computes prompts and one that generates. Each round asks for
two new prompts of the same length, once by pull (the decode engine gets the request when the prompt is
computed) and once by stream (both get it at once). Loopback moves these prompts in milliseconds, so every
slice of 256 KiB is held up by `--delay`: a link of known speed, by the transport for tests.

`exposed` is the time between the end of the prefill and the confirmed load, as the decode engine counts it
(`kvferry_handoff_load_seconds`): by pull all of the transfer, by stream what is left of it. `first_token` is
what a user sees: from the request to the first token, without HTTP. Medians over the rounds.

`--model smollm2` has 30 layers and real work in each; `tiny` has 4, so that the last layer of the last step,
which nothing can hide, is a larger part of it. Needs what `./test` sets for its engine tests:
KVFERRY_VLLM_PYTHON and KVFERRY_MODEL_<NAME>.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "core")]

from engines.engine_lab import Lab, LabEngine  # noqa: E402
from engines.harness import model_folder  # noqa: E402
from engines.vllm_inprocess.prompts import numbered  # noqa: E402
from kvferry.handoff import (  # noqa: E402
    LeaseAddress,
    StreamAddress,
    build_stream,
    parse_lease_address,
    stream_order,
)

LOAD_SECONDS = "kvferry_handoff_load_seconds_sum"
MIB = 1 << 20
SLICE = MIB // 4
BLOCKS = 160  # of 32 tokens, in each engine's cache


class Sample(NamedTuple):
    """One prompt's times in seconds, and what was moved."""

    exposed_s: float
    first_token_s: float
    bytes: float
    early_bytes: float


class Pair:
    """A prefill and a decode engine."""

    def __init__(self, prefill: LabEngine, decode: LabEngine) -> None:
        self.prefill, self.decode = prefill, decode
        self.address: LeaseAddress | None = None

    def pull(self, prompt: list[int]) -> Sample:
        """The prompt here, then the answer there."""
        before, started = self._counts(), time.monotonic()
        (params,) = self.prefill.prefill([prompt])
        self.decode.run([prompt], 1, [params])
        first_token_s = time.monotonic() - started
        self.address = parse_lease_address(params)
        return self._sample(before, first_token_s)

    def stream(self, prompt: list[int]) -> Sample:
        """Both at once."""
        assert self.address is not None
        stream = secrets.token_hex(16)
        follow = StreamAddress(stream, self.address.node_ids, self.address.endpoints)
        before, started = self._counts(), time.monotonic()
        there = self.prefill.add(prompt, 1, {"do_remote_decode": True, **stream_order(stream)})
        here = self.decode.add(prompt, 1, build_stream(follow))
        self.decode.wait([here])
        first_token_s = time.monotonic() - started
        self.prefill.wait([there])
        return self._sample(before, first_token_s)

    def _counts(self) -> dict[str, float]:
        return dict(self.decode.state()["metrics"])

    def _sample(self, before: dict[str, float], first_token_s: float) -> Sample:
        self.decode.run(numbered(1, 40), 1)  # vLLM takes a connector's counts in when it steps
        after = self._counts()

        def grown(prefix: str) -> float:
            return sum(value - before.get(key, 0.0) for key, value in after.items() if key.startswith(prefix))

        if grown("kvferry_handoff_loads_total|loaded") != 1:
            raise RuntimeError("the prompt was not loaded")
        return Sample(
            grown(LOAD_SECONDS),
            first_token_s,
            grown("kvferry_handoff_loaded_bytes_total"),
            grown("kvferry_handoff_early_bytes_total"),
        )


def measure(model: str, rounds: int, tokens: int, delay_ms: int, folder: Path) -> dict[str, object]:
    """Run it; see the module's text."""
    slow = {
        "protocol": "shm",
        "transfer.shm_lanes": 1,
        "transfer.slice_bytes": SLICE,
        "transfer.fault_plan": f"*:delay={delay_ms}",
    }
    lab = Lab(folder)
    try:
        engine = {"model": str(model_folder(model)), "num_gpu_blocks_override": BLOCKS}
        pair = Pair(lab.start("kv_producer", **engine), lab.start("kv_consumer", options=slow, **engine))
        pair.pull(numbered(1, tokens, seed=1)[0])
        pair.stream(numbered(1, tokens, seed=2)[0])
        prompts = iter(numbered(3 * rounds, tokens, seed=3))
        pulled, streamed, alone = [], [], []
        for _ in range(rounds):
            pulled.append(pair.pull(next(prompts)))
            streamed.append(pair.stream(next(prompts)))
            started = time.monotonic()
            pair.prefill.run([next(prompts)], 1)
            alone.append(time.monotonic() - started)
    finally:
        lab.close()
    exposed = [statistics.median(one.exposed_s for one in each) for each in (pulled, streamed)]
    first = [statistics.median(one.first_token_s for one in each) for each in (pulled, streamed)]
    moved = statistics.median(one.bytes for one in streamed)
    return {
        "model": model,
        "tokens": tokens,
        "mib": round(moved / MIB, 2),
        "link_mib_s": round(SLICE / MIB * 1000 / delay_ms, 1),
        "rounds": rounds,
        "prefill_s": round(statistics.median(alone), 4),
        "pull_exposed_s": round(exposed[0], 4),
        "stream_exposed_s": round(exposed[1], 4),
        "hidden": round(1 - exposed[1] / exposed[0], 3),
        "early_share": round(statistics.median(one.early_bytes / one.bytes for one in streamed), 3),
        "pull_first_token_s": round(first[0], 4),
        "stream_first_token_s": round(first[1], 4),
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1900, help="length of a prompt")
    parser.add_argument("--delay", type=int, default=4, help="milliseconds for each 256 KiB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as folder:
        found = measure(options.model, options.rounds, options.tokens, options.delay, Path(folder))
    for name, value in found.items():
        print(f"{name:22} {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

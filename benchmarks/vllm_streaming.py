"""How much of the time for moving a long prompt's KV cache is hidden behind its computation.

    python benchmarks/vllm_streaming.py [--json FILE] [--docs FILE] [--model NAME] [--rounds N] ...

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
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.transfer_bench import report  # noqa: E402
from benchmarks.transfer_bench.rows import Row, table, write_json, write_page  # noqa: E402

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


class Found(NamedTuple):
    """Of all rounds: the prompts by pull and by stream, and seconds of the prefill alone."""

    pulled: list[Sample]
    streamed: list[Sample]
    alone: list[float]


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


def measure(model: str, rounds: int, tokens: int, delay_ms: int, folder: Path) -> Found:
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
    return Found(pulled, streamed, alone)


def rows_of(found: Found) -> list[Row]:
    """Stream beside pull. What is exposed of the transfer, 20 % at most, and the time to the first token."""

    def median(samples: list[Sample], name: str) -> float:
        return statistics.median(getattr(one, name) for one in samples)

    return [
        Row(
            "vllm_streaming",
            case,
            median(found.streamed, name),
            "s",
            "pull",
            median(found.pulled, name),
            target,
        )
        for case, name, target in (
            ("from the end of the prefill to the confirmed load", "exposed_s", "<= 0.2"),
            ("from the request to the first token", "first_token_s", "<= 1"),
        )
    ]


def about(found: Found, options: argparse.Namespace) -> list[str]:
    """What was moved, over which link, and how much of it was read before the prefill had ended."""
    moved = statistics.median(one.bytes for one in found.streamed)
    early = statistics.median(one.early_bytes / one.bytes for one in found.streamed)
    exposed = rows_of(found)[0].ratio
    return [
        f"model {options.model}, prompts of {options.tokens} tokens, {moved / MIB:.1f} MiB of KV cache each, "
        f"{options.rounds} rounds",
        f"a link of {SLICE / MIB * 1000 / options.delay:.1f} MiB/s, by the transport for tests",
        f"prefill alone: {statistics.median(found.alone):.2f} s",
        f"hidden: {100 * (1 - (exposed or 0.0)):.1f} % of the transfer",
        f"read before the prefill had ended: {100 * early:.1f} % of the bytes",
    ]


def main() -> int:
    """Parse the command line, measure, print; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="also put the result into this page")
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1900, help="length of a prompt")
    parser.add_argument("--delay", type=int, default=4, help="milliseconds for each 256 KiB")
    options = parser.parse_args()
    where = report.machine()
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as folder:
        found = measure(options.model, options.rounds, options.tokens, options.delay, Path(folder))
    rows, notes = rows_of(found), [where, *about(found, options)]
    print(table(rows) + "\n" + "\n".join(notes))
    if options.json:
        write_json(options.json, rows, {"machine": where, "notes": notes[1:]})
    if options.docs:
        sections = {"streaming about": "\n".join(f"- {line}" for line in notes), "streaming": table(rows)}
        write_page(options.docs, sections)
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())

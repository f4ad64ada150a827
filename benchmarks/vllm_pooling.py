"""Time to the first token of a shared prefix on real vLLM (CPU): computed, from vLLM's own prefix cache, from
our pool in memory and on SSD, and after a restart of the engine; and what the connector costs where nothing
is shared.

    KVFERRY_VLLM_PYTHON=VENV/bin/python python benchmarks/vllm_pooling.py [--json FILE] [--rounds N]

The interpreter named needs vLLM and KVFerry. Engines run in processes of their own, forked from one that has
imported vLLM, and take turns in one run, each prefix being new. Beside them: vLLM's ExampleConnector, which
keeps KV cache in files (here in the page cache), since the other connectors with a store do not run on CPUs.
Figures are medians over the rounds; the throughput is the best round's, since other programs' load only takes
away.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from engines.engine_lab import Lab, LabEngine  # noqa: E402
from kvferry.testing.nodes import NodeChild  # noqa: E402

PREFIX, TAIL = 1984, 16  # tokens: whole blocks, and less than one
# The whole prompt in one step: ExampleConnector does not keep prompts that are computed in chunks.
ENGINE = {"num_gpu_blocks_override": 1024, "max_num_batched_tokens": 2048}
AT_MOST = 1.03  # ours to theirs


class Row(NamedTuple):
    """One figure; `against` names what it is compared with."""

    bench: str
    case: str
    ours: float
    unit: str
    against: str
    theirs: float
    ratio: float
    target: str
    met: bool


class Run:
    """Engines of one run, and what they took."""

    def __init__(self, lab: Lab, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.lab = lab
        self.folder = folder
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(300, 2000) for _ in range(count)]

    def first_token(self, case: str, engine: LabEngine, prefix: Sequence[int]) -> None:
        """Time a prompt that begins with the prefix and ends as no other."""
        prompt = [*prefix, *self.tokens(TAIL)]
        self.seconds[case].append(engine.call("timed", prompts=[prompt], max_tokens=1))

    def settle(self, engine: LabEngine) -> None:
        """Let the engine save what it has to, and forget its own prefixes."""
        engine.all_blocks_free(60.0)
        if not engine.call("forget_prefixes"):
            raise RuntimeError(f"{engine.name} could not forget its prefixes")

    def warm_up(self, *engines: LabEngine) -> None:
        for engine in engines:
            for _ in range(2):
                engine.call("timed", prompts=[self.tokens(600)], max_tokens=8)
            self.settle(engine)


def shared_prefixes(run: Run, rounds: int) -> None:
    """All cases but the SSD tier; each round has a prefix of its own."""
    folder = run.folder / "memory"
    folder.mkdir(0o700)
    options = {"cluster.directory": str(folder), "log.level": "warning"}
    files = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    files["kv_connector_extra_config"] = {"shared_storage_path": str(run.folder / "files")}
    with NodeChild(folder, "--dram", f"{rounds * 20 + 40}MiB"):
        plain = run.lab.start(None, **ENGINE)
        ours = run.lab.start("kv_both", options=options, **ENGINE)
        example = run.lab.start(None, kv=files, **ENGINE)
        run.warm_up(plain, ours, example)
        prefixes = [run.tokens(PREFIX) for _ in range(rounds)]
        for prefix in prefixes:
            run.first_token("cold", plain, prefix)
            run.first_token("own", plain, prefix)
            for name, engine in (("ours", ours), ("example", example)):
                run.first_token(f"{name} cold", engine, prefix)
                run.settle(engine)
                run.first_token(name, engine, prefix)
            run.settle(ours)
            run.settle(plain)
        run.lab.stop(ours)
        run.lab.stop(example)
        again = run.lab.start("kv_both", options=options, **ENGINE)
        example = run.lab.start(None, kv=files, **ENGINE)
        run.warm_up(again, example)
        for prefix in prefixes:
            run.first_token("restarted", again, prefix)
            run.first_token("example restarted", example, prefix)
        run.lab.stop(again)
        run.lab.stop(example)
        run.lab.stop(plain)


def from_ssd(run: Run, rounds: int) -> None:
    """Prefixes that the node's memory has no room for."""
    folder, disk = run.folder / "ssd", run.folder / "disk"
    for each in (folder, disk):
        each.mkdir(0o700)
    environ = {"KVFERRY_STORE_SSD_WRITE": "through"}
    flags = ("--dram", "24MiB", "--ssd", f"{disk}:1GiB")
    with NodeChild(folder, *flags, environ=environ) as node, node.open() as store:
        options = {"cluster.directory": str(folder), "log.level": "warning"}
        engine = run.lab.start("kv_both", options=options, **ENGINE)
        run.warm_up(engine)
        prefixes = [run.tokens(PREFIX) for _ in range(rounds)]
        for prefix in prefixes:
            run.first_token("ssd cold", engine, prefix)
            run.settle(engine)
            wait_for(
                lambda: (
                    store.node_stats().counters["ssd_written_total"]
                    >= store.node_stats().counters["stored_total"]
                )
            )
        for prefix in prefixes:
            run.first_token("ssd", engine, prefix)
            run.settle(engine)
        run.lab.stop(engine)


def throughput(run: Run, rounds: int) -> None:
    """Prompts that share nothing, eight at a time, with the connector and without."""
    folder = run.folder / "nothing"
    folder.mkdir(0o700)
    with NodeChild(folder, "--dram", "256MiB"):
        options = {"cluster.directory": str(folder), "log.level": "warning"}
        engines = {
            "off": run.lab.start(None, **ENGINE),
            "on": run.lab.start("kv_both", options=options, **ENGINE),
        }
        run.warm_up(*engines.values())
        for number in range(2 * rounds):
            for name in sorted(engines, reverse=bool(number % 2)):
                prompts = [run.tokens(250) for _ in range(8)]
                run.seconds[name].append(engines[name].call("timed", prompts=prompts, max_tokens=32))
        for engine in engines.values():
            run.lab.stop(engine)


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the SSD tier did not take the blocks in")
        time.sleep(0.05)


def compare(run: Run) -> list[Row]:
    """Put the figures side by side."""

    def ms(case: str) -> float:
        return 1e3 * statistics.median(run.seconds[case])

    def row(case: str, ours: str, against: str, theirs: str, at_most: float) -> Row:
        ratio = ms(ours) / ms(theirs)
        return Row(
            "vllm_pooling", case, round(ms(ours), 2), "ms to first token", against, round(ms(theirs), 2),
            round(ratio, 3), f"<= {at_most}", ratio <= at_most,
        )  # fmt: skip

    on, off = (min(run.seconds[name]) for name in ("on", "off"))
    cost = on / off
    return [
        row("cold, connector on", "ours cold", "vLLM without a connector", "cold", AT_MOST),
        row("pool in memory", "ours", "ExampleConnector", "example", AT_MOST),
        row("pool in memory", "ours", "vLLM computing it", "cold", 1.0),
        row("pool in memory", "ours", "vLLM's own prefix cache", "own", 10.0),
        row("pool on SSD", "ssd", "vLLM computing it", "cold", 1.0),
        row("pool on SSD", "ssd", "ExampleConnector, in page cache", "example", AT_MOST),
        row("after a restart", "restarted", "vLLM computing it", "cold", 1.0),
        row("after a restart", "restarted", "ExampleConnector", "example restarted", AT_MOST),
        Row("vllm_pooling", "nothing shared", round(on, 3), "s for 8 prompts", "connector off", round(off, 3),
            round(cost, 3), "<= 1.02", cost <= 1.02),
    ]  # fmt: skip


def main() -> int:
    """Run, print, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lab = Lab(folder)
        run = Run(lab, folder, options.seed)
        try:
            for part in (shared_prefixes, from_ssd, throughput):
                part(run, options.rounds)
        finally:
            lab.close()
    rows: list[dict[str, Any]] = [each._asdict() for each in compare(run)]
    for each in rows:
        print(
            f"{each['case']:20} {each['ours']:9} {each['unit']:18} {each['against']:31} {each['theirs']:9} "
            f"ratio {each['ratio']:6} {each['target']:8} {'met' if each['met'] else 'MISSED'}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if all(each["met"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

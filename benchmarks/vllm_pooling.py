"""Time to the first token on real vLLM (CPU) of a prefix that was computed before, of a prompt that another
engine computed, and what our connector costs where nothing is shared; beside what else runs on a CPU.

    python3 -m tools.envs vllm-peers    # prints the PYTHON of an environment with vLLM, its peers and KVFerry
    KVFERRY_VLLM_PYTHON=PYTHON python benchmarks/vllm_pooling.py [--json FILE] [--docs FILE] [--rounds N] ...

Engines run in processes of their own, forked from one that has imported vLLM, and take turns in one run, each
prefix being new; every hit is checked for its number of tokens. Beside ours: vLLM's ExampleConnector (files,
in the page cache or read from the disk), LMCache's connector to an `lmcache server`, MooncakeStoreConnector
with its store in the engine's process or apart from it, and NixlConnector for hand-offs. What the interpreter
lacks is left out, and so said. Figures are the best round's, since other programs' load only adds to them;
what the connector costs is the median over many short pairs of turns, see benchmarks/vllm_bench/overhead.py.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.transfer_bench import report  # noqa: E402
from benchmarks.transfer_bench.rows import Row, table, write_json, write_page  # noqa: E402
from benchmarks.vllm_bench.attempts import try_others  # noqa: E402
from benchmarks.vllm_bench.handoff import handed_over  # noqa: E402
from benchmarks.vllm_bench.overhead import SMALL_WORK, Costs, Work, nothing_shared, spread  # noqa: E402
from benchmarks.vllm_bench.prefixes import from_disk, shared_prefixes  # noqa: E402
from benchmarks.vllm_bench.run import Run  # noqa: E402

from engines.engine_lab import Lab  # noqa: E402
from engines.harness import model_folder, vllm_python  # noqa: E402

PARTS = ("handoff", "prefixes", "disk", "overhead", "overhead-smollm2", "attempts")
FASTEST = "<= 1.03"  # ours to theirs
UNIT = "ms to the first token"
# What is compared: the case, ours, by whom it is done otherwise, theirs, the target.
COMPARED = (
    ("pool in memory", "ours", "computing it", "cold", "<= 1"),
    ("pool in memory", "ours", "vLLM's own prefix cache", "own", ""),
    ("pool in memory", "ours", "ExampleConnector, page cache", "example", FASTEST),
    ("pool in memory", "ours", "LMCache's server", "lmcache", FASTEST),
    ("pool in memory", "ours", "MooncakeStoreConnector", "mooncake", FASTEST),
    ("pool in memory", "ours", "MooncakeStoreConnector, a store apart", "mooncake apart", FASTEST),
    ("after a restart of the engine", "ours again", "computing it", "cold", "<= 1"),
    ("after a restart of the engine", "ours again", "ExampleConnector", "example again", FASTEST),
    ("after a restart of the engine", "ours again", "LMCache's server", "lmcache again", FASTEST),
    (
        "after a restart of the engine",
        "ours again",
        "MooncakeStoreConnector",
        "mooncake apart again",
        FASTEST,
    ),
    ("pool on SSD", "ours disk", "computing it", "cold", "<= 1"),
    ("pool on SSD", "ours disk", "ExampleConnector, from the disk", "example disk", FASTEST),
    ("pool on SSD", "ours disk", "LMCache's server, from the disk", "lmcache disk", FASTEST),
    ("pool on SSD", "ours disk", "ExampleConnector, page cache", "example", ""),
    ("computed and saved", "ours cold", "no connector", "cold", FASTEST),
    ("computed and saved", "ours cold", "ExampleConnector", "example cold", FASTEST),
    ("computed and saved", "ours cold", "LMCache's server", "lmcache cold", FASTEST),
    ("computed and saved", "ours cold", "MooncakeStoreConnector", "mooncake cold", FASTEST),
    ("handed over, decode engine's part", "ours decode", "NixlConnector", "nixl decode", FASTEST),
    ("handed over, from the request on", "ours handed over", "NixlConnector", "nixl handed over", FASTEST),
    ("handed over while computed", "stream handed over", "NixlConnector", "nixl handed over", FASTEST),
)


def rows_of(run: Run) -> list[Row]:
    """Put side by side what was measured."""
    return [
        Row("vllm_pooling", case, run.ms(ours), UNIT, against, run.ms(theirs), target)
        for case, ours, against, theirs, target in COMPARED
        if run.seconds.get(ours) and run.seconds.get(theirs)
    ]


def cost_rows(model: str, costs: Costs) -> list[Row]:
    """Processor and wall time where nothing is shared, each the median of the pairs' ratios."""
    rows = []
    for what, pairs in (("processor time", costs.cpu), ("wall time", costs.wall)):
        found = spread(pairs)
        case = f"nothing shared, {model}, {costs.work}: {what}, {len(pairs)} pairs, middle half {found}"
        ours = found.without * found.ratio
        rows.append(Row("vllm_pooling", case, ours, "s", "no connector", found.without, "<= 1.02"))
    share = 100 * statistics.median(costs.shares)
    case = f"nothing shared, {model}, {costs.work}: processor time of the connector itself"
    rows.append(Row("vllm_pooling", case, share, "% of the engine's", target="<= 2"))
    return rows


def has(python: Path, module: str) -> bool:
    """Whether an interpreter finds a module."""
    program = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", program], check=False, timeout=60).returncode == 0


class Benchmark:
    """One run: its parts, and what came of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._python = vllm_python()
        self._peers = {name: has(self._python, name) for name in ("lmcache", "nixl", "mooncake")}
        self.notes = [f"{name}: not in this environment" for name, there in self._peers.items() if not there]
        self._costs: list[Row] = []

    def run(self, folder: Path) -> Iterator[list[Row]]:
        """Run the parts that were asked for; all rows so far after each of them."""
        lab = Lab(folder)
        options, peers = self._options, {name for name, there in self._peers.items() if there}
        model = model_folder(options.model)
        run = Run(lab, folder, rounds=options.rounds, model=model, seed=options.seed)
        parts: dict[str, Callable[[], None]] = {
            "handoff": lambda: handed_over(run, beside_nixl="nixl" in peers),
            "prefixes": lambda: shared_prefixes(run, self._python, peers),
            "disk": lambda: from_disk(run, self._python, peers),
            "overhead": lambda: self._overhead(run, options.model, Work()),
            "overhead-smollm2": lambda: self._overhead(run, "smollm2", SMALL_WORK),
            "attempts": lambda: self._attempts(run),
        }
        try:
            for name in options.parts.split(","):
                parts[name]()
                yield rows_of(run) + self._costs
        finally:
            lab.close()

    def _overhead(self, run: Run, model: str, work: Work) -> None:
        other = Run(run.lab, run.folder, rounds=run.rounds, model=model_folder(model))
        pairs = self._options.pairs if work == Work() else self._options.pairs // 4
        self._costs += cost_rows(model, nothing_shared(other, work, pairs))

    def _attempts(self, run: Run) -> None:
        for name, error in try_others(run).items():
            self.notes.append(f"{name}: " + (f"does not run here: {error}" if error else "runs here"))


def main() -> int:
    """Run, print, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="also put the result into this page")
    parser.add_argument("--rounds", type=int, default=7, help="prefixes, and prompts handed over")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of turns with and without the connector")
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="tiny")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of them, by commas")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    unknown = set(options.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--parts takes {', '.join(PARTS)}")
    started, where = time.monotonic(), report.machine()
    benchmark, rows = Benchmark(options), []
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as folder:
        for rows in benchmark.run(Path(folder)):
            about = [where, f"model {options.model}, {time.monotonic() - started:.0f} s", *benchmark.notes]
            if options.json:  # after each part: the next one may not end well
                write_json(options.json, rows, {"machine": where, "notes": about[1:]})
    print(table(rows))
    print("\n".join(about) + f"\nMissed:\n{report.missed(rows)}")
    if options.docs:
        write_page(
            options.docs,
            {
                "vllm about": "\n".join(f"- {line}" for line in about),
                "vllm missed": report.missed(rows),
                "vllm": table(rows),
            },
        )
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())

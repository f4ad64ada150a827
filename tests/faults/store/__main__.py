"""The command line of the campaign.

    python -m tests.faults.store --rounds 200 --seed 7 [--long]

A failed round is repeated by the same seed and `--only ROUND`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.store.campaign import run
from tests.faults.store.failover import PROMISED, measure
from tests.faults.store.processes import Failure

KILLS = 40  # whose fail-over is measured


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.store", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="ROUND", help="repeat this round of the seed")
    parser.add_argument("--long", action="store_true", help="nodes stand still for 30 s, not for 6 s")
    options = parser.parse_args()
    pause_s, traffic_s = (30.0, 10.0) if options.long else (6.0, 1.5)
    with tempfile.TemporaryDirectory(prefix="kvferry-faults-") as directory:
        try:
            run(
                Path(directory), rounds=options.rounds, seed=options.seed, only=options.only,
                pause_s=pause_s, traffic_s=traffic_s,
            )  # fmt: skip
            if options.long and options.only is None:
                (Path(directory) / "fail-over").mkdir(mode=0o700)
                felt = measure(Path(directory) / "fail-over", KILLS)
                print(felt)
                PROMISED.check(felt)
        except Failure as failure:
            print(f"FAILED --seed {options.seed}: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

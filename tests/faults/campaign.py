"""A survivor and peers that are killed, stopped and restarted at random points.

    python -m tests.faults.campaign --build build/native-asan --transport tcp --rounds 200 --seed 7 [--tls]

Needs a native build with tests (`cmake --preset asan`, or `tsan`, `release`) and the standard library.
The survivor must not crash, leak, hang past a deadline or take wrong bytes for right. A failed round is
repeated by the same seed and `--only ROUND`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.nodes import Failure, ImpossibleHere, Node

MIB = 1 << 20
WHOLE = f"0 {8 * MIB} 8"  # 64 MiB in eight transfers
WRITTEN = f"0 {4 * MIB} 4"  # 16 MiB in four
# How a transfer may end when its peer is treated like this.
ENDS = {"ok", "peer_lost", "deadline_exceeded", "unavailable", "stale", "not_found", "cancelled"}
REFUSALS = ("peer_lost", "unavailable", "deadline_exceeded", "identity_mismatch")
WARM_UP_ROUNDS = 4
EXIT_SKIPPED = 77  # as ctest is told


class Round:
    """One round: a victim of its own, the survivor of all rounds."""

    def __init__(self, campaign: Campaign, number: int) -> None:
        self.rng = random.Random(f"{campaign.seed}:{number}")
        self.survivor = campaign.survivor
        self.margin_ms = campaign.margin_ms
        self._campaign = campaign
        self.victim = self.start_victim()
        self.connected = False  # to the victim

    def start_victim(self, bind: str = "127.0.0.1:0") -> Node:
        """Another victim, with bytes of its own."""
        return self._campaign.start(
            self.rng.choice(["arena", "foreign"]), self.rng.randrange(1, 1 << 20), bind
        )

    def nap(self, longest_s: float) -> None:
        """A random pause."""
        time.sleep(self.rng.random() * longest_s)

    def connect(self) -> None:
        """The survivor connects to the victim."""
        self.survivor.must(f"connect 5000 {self.victim.address}")
        self.connected = True

    def start(self, what: str, where: str, timeout_ms: int = 4000) -> bool:
        """The survivor starts transfers; False if it refused since the peer is lost."""
        seed = self.survivor.seed if what == "back" else self.victim.seed
        answer = self.survivor.ask(f"start {what} {where} {timeout_ms} {seed}")
        if answer != "ok" and answer.split(" ")[1].rstrip(":") not in REFUSALS:
            raise Failure(f"start was answered with {answer!r}")
        return answer == "ok"

    def finish(self) -> dict[str, int]:
        """Wait for all of them; none may hang, be late, bring wrong bytes, or fail for an odd reason."""
        counts = self.survivor.must(f"finish {self.margin_ms}", timeout_s=90.0)
        bad = {name: counts.pop(name) for name in ("wrong", "late", "hung")}
        if any(bad.values()) or not counts.keys() <= ENDS:
            raise Failure(f"transfers ended as {counts | bad}")
        return counts

    def all_right(self, what: str, where: str) -> None:
        """The survivor moves something, and nothing may fail."""
        if not self.start(what, where, timeout_ms=20_000):
            raise Failure(f"{what}: the peer was lost, although it lives")
        counts = self.finish()
        if counts.keys() != {"ok"}:
            raise Failure(f"{what}: transfers ended as {counts}, although the peer lives")

    def check_victim(self) -> None:
        """It lives: every byte comes right, in both directions; then it closes in good order.

        After a pause the old connection must do, now and then.
        """
        if not self.connected or self.rng.random() < 0.5:
            self.connect()
        else:
            self.survivor.must("refresh")  # its regions may have been replaced
        self.all_right("read", WHOLE)
        self.all_right("write", WRITTEN)
        self.all_right("back", WRITTEN)
        self.survivor.must("leave")
        self.victim.end()

    def fault(self) -> str:
        """Kill, stop for a while, or restart behind the same address; returns which."""
        kind = self.rng.choice(["kill", "kill", "stop", "restart"])
        if kind == "stop":
            self.victim.stop()
            self.nap(0.4)
            self.victim.resume()
            return kind
        before = self.victim
        before.kill()
        self.connected = False
        if kind == "restart":
            self.victim = self.start_victim(bind=before.endpoint)
        before.close()
        return kind

    def aftermath(self, kind: str) -> None:
        """Let everything settle, then ask the victim, if there is one, for all it has."""
        self.finish()
        if kind != "kill":
            self.check_victim()
        self.survivor.must("idle")


def before_the_handshake(now: Round) -> str:
    """The victim dies or stops while it is being connected to."""
    if now.rng.random() < 0.3:
        now.victim.stop()
        answer = now.survivor.ask(f"connect 300 {now.victim.address}")
        if answer.split(" ")[1:2] not in (["deadline_exceeded:"], ["unavailable:"]):
            raise Failure(f"connecting to a stopped peer was answered with {answer!r}")
        now.victim.resume()
        return "stop"
    now.survivor.say(f"connect 5000 {now.victim.address}")
    now.nap(0.004)
    kind = now.fault()
    answer = now.survivor.hear(15.0)
    if answer != "ok" and answer.split(" ")[1].rstrip(":") not in REFUSALS:
        raise Failure(f"connect was answered with {answer!r}")
    if answer == "ok":
        now.start("read", WHOLE)
    return kind


def during_a_transfer(now: Round) -> str:
    """The victim is hit while 64 MiB are read from it, sometimes against a short deadline."""
    now.connect()
    now.start("read", WHOLE, timeout_ms=now.rng.choice([100, 4000, 4000]))
    now.nap(0.03)
    return now.fault()


def during_a_write(now: Round) -> str:
    """The victim is hit while it is written to and read from."""
    now.connect()
    now.start("write", WRITTEN)
    now.start("read", WHOLE)
    now.nap(0.03)
    return now.fault()


def between_chunks(now: Round) -> str:
    """The victim is hit after some of the chunks, and the survivor goes on with the rest."""
    now.connect()
    last, kind = now.rng.randrange(1, 8), "none"
    for chunk in range(8):
        if chunk == last:
            kind = now.fault()
        if not now.start("read", f"{chunk * 8 * MIB} {8 * MIB} 1"):
            break
        counts = now.finish()
        if chunk < last and counts != {"ok": 1}:
            raise Failure(f"chunk {chunk} ended as {counts} before anything was broken")
    return kind


def while_memory_is_taken_back(now: Round) -> str:
    """The victim is hit while it uses memory that the survivor takes back."""
    op = now.rng.choice(["read", "write"])
    if now.victim.ask(f"hammer {op} {now.survivor.address}") != "ok":
        raise Failure("the victim could not connect")
    now.nap(0.05)
    now.survivor.say(f"cycle {op} 8000")
    now.nap(0.01)
    kind = now.fault()
    answer = now.survivor.hear(30.0)
    if answer != "ok":
        raise Failure(f"taking memory back was answered with {answer!r}")
    return kind


def while_the_victim_takes_memory_back(now: Round) -> str:
    """The victim is hit while it takes back what the survivor reads."""
    now.connect()
    now.start("read", WHOLE)
    now.victim.say("cycle read 8000")
    now.nap(0.03)
    kind = now.fault()
    if kind == "stop" and now.victim.hear(30.0) != "ok":
        raise Failure("the victim could not take its memory back")
    return kind


SCENARIOS: tuple[Callable[[Round], str], ...] = (
    before_the_handshake,
    during_a_transfer,
    during_a_write,
    between_chunks,
    while_memory_is_taken_back,
    while_the_victim_takes_memory_back,
)


class Campaign:
    """The survivor, and what happened to it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.seed: int = options.seed
        self.margin_ms: int = options.margin_ms
        self._program: Path = options.build.resolve() / "tests" / "fault_node"
        self._transport: str = options.transport
        self._security: str = options.security
        self._nodes: list[Node] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.survivor = self.start("foreign", 1, plan=options.fault_plan)

    def start(self, memory: str, seed: int, bind: str = "127.0.0.1:0", plan: str = "") -> Node:
        """One more node; closed with the campaign at the latest."""
        node = Node(
            self._program, self._transport, memory, seed, bind=bind, security=self._security, plan=plan
        )
        self._nodes.append(node)
        return node

    def run_round(self, number: int) -> None:
        """One scenario with one fault, to its end."""
        now = Round(self, number)
        scenario = SCENARIOS[number % len(SCENARIOS)]
        try:
            kind = scenario(now)
            self.counts[f"{scenario.__name__}/{kind}"] += 1
            now.aftermath(kind)
        except Failure as failure:
            raise Failure(f"round {number} ({scenario.__name__}): {failure}") from None
        for node in self._nodes[1:]:
            node.close()
        del self._nodes[1:]

    def state(self) -> dict[str, int]:
        """What the survivor holds, once everything had time to end."""
        seen = self.survivor.must("state")
        for _ in range(20):
            time.sleep(0.1)
            before, seen = seen, self.survivor.must("state")
            if before == seen:
                break
        return seen

    def close(self) -> None:
        """End every process."""
        for node in self._nodes:
            node.close()


def check_growth(before: dict[str, int], after: dict[str, int]) -> None:
    """Descriptors and threads must be back; a few mappings may be the allocator's."""
    if after["fds"] > before["fds"] or after["threads"] > before["threads"] or after["peers"]:
        raise Failure(f"from {before} the survivor went to {after}")
    if after["maps"] - before["maps"] > 60:
        raise Failure(f"mappings went from {before['maps']} to {after['maps']}")


@contextlib.contextmanager
def campaign_of(options: argparse.Namespace) -> Iterator[Campaign]:
    """The campaign that the command line asks for."""
    campaign = Campaign(options)
    try:
        yield campaign
    finally:
        campaign.close()


def run(options: argparse.Namespace) -> None:
    """All rounds, then the survivor's own end; `Failure` names the first that went wrong."""
    numbers = range(options.rounds) if options.only is None else [options.only]
    started, before = time.monotonic(), None
    with campaign_of(options) as campaign:
        for index, number in enumerate(numbers):
            campaign.run_round(number)
            if index + 1 == WARM_UP_ROUNDS:
                before = campaign.state()
            if (index + 1) % 20 == 0:
                print(f"{options.transport}: {index + 1} of {len(numbers)} rounds", flush=True)
        after = campaign.state()
        if before is not None:
            check_growth(before, after)
        campaign.survivor.end()
    seconds = time.monotonic() - started
    way = f"{options.transport} {options.security}".strip()
    print(f"{way}: {len(numbers)} rounds of seed {options.seed} in {seconds:.0f} s, all right")
    print("  " + ", ".join(f"{name} {count}" for name, count in sorted(campaign.counts.items())))
    print(f"  the survivor held {before} after the warm-up, {after} at the end")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.campaign", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--build", type=Path, required=True, help="a native build folder with tests")
    parser.add_argument("--transport", choices=["shm", "tcp"], required=True)
    security = parser.add_mutually_exclusive_group()
    security.add_argument(
        "--secret",
        dest="security",
        action="store_const",
        const="secret",
        help="with a cluster secret: control messages carry tags, and so does what announces data on tcp",
    )
    security.add_argument(
        "--tls", dest="security", action="store_const", const="tls", help="with TLS on all tcp connections"
    )
    parser.set_defaults(security="")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="ROUND", help="repeat this round of the seed")
    parser.add_argument(
        "--margin-ms", type=int, default=5000, help="how late an end may be: threads need a processor, too"
    )
    parser.add_argument(
        "--fault-plan", default="", help="break the survivor on purpose, to see that the campaign fails then"
    )
    options = parser.parse_args()
    try:
        run(options)
    except Failure as failure:
        way = f"--transport {options.transport}" + (f" --{options.security}" if options.security else "")
        print(f"FAILED {way} --seed {options.seed}: {failure}", file=sys.stderr)
        return 1
    except ImpossibleHere as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return EXIT_SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the whole suite in stages with a timing summary: the Python half of ./test."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from types import FrameType

from tools import stages
from tools.envs import ROOT
from tools.progress import ToolError, end_supervised, say, start_supervised


@dataclass
class Outcome:
    """How one stage went."""

    name: str
    seconds: float
    problems: list[str] = field(default_factory=list)


def _run(command: stages.Command) -> str | None:
    """Run one command with its output going straight to ours; returns what went wrong, or None."""
    print(f"$ {command.label}", flush=True)
    process = start_supervised(command.argv, env={**os.environ, **command.env}, cwd=command.cwd or ROOT)
    try:
        status = process.wait(command.timeout_s)
    except subprocess.TimeoutExpired:
        return f"{command.label}: no end after {command.timeout_s:.0f} s"
    finally:
        end_supervised(process)
    return None if status == 0 else f"{command.label}: exit status {status}"


def _run_commands(commands: list[stages.Command], outcome: Outcome) -> None:
    """Run the commands in order; a failed one that the rest needs ends the stage."""
    for command in commands:
        problem = _run(command)
        if problem:
            print(f"FAILED {problem}", flush=True)
            outcome.problems.append(problem)
        if problem and command.needed:
            return


def _run_stage(stage: stages.Stage, context: stages.Context) -> Outcome:
    started = time.monotonic()
    outcome = Outcome(stage.name, 0.0)
    print(f"\n=== {stage.name}: {stage.what}", flush=True)
    try:
        commands = stage.commands(context)
        if not commands:
            outcome.problems.append("nothing to run")
        _run_commands(commands, outcome)
    except ToolError as error:
        print(f"FAILED {error}", flush=True)
        outcome.problems.append(str(error).splitlines()[0])
    outcome.seconds = time.monotonic() - started
    return outcome


def _summary(outcomes: list[Outcome]) -> int:
    print("\n=== summary")
    for outcome in outcomes:
        print(f"{'FAILED' if outcome.problems else 'ok':6} {outcome.seconds:7.1f} s  {outcome.name}")
        for problem in outcome.problems:
            print(f"{'':18} {problem}")
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"total {sum(outcome.seconds for outcome in outcomes):.0f} s")
    print(f"stages: {len(outcomes) - failed} passed, {failed} failed", flush=True)
    return 1 if failed or not outcomes else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./test", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="lint, native build and quick tests only")
    parser.add_argument(
        "--only", metavar="STAGE[,STAGE]", help="run these stages: " + ", ".join(stages.names())
    )
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first stage that fails")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --", metavar="-- ARG")
    options = parser.parse_args(arguments)
    unknown = set((options.only or "").split(",")) - set(stages.names()) - {""}
    if unknown:
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    return options


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = _parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, _interrupt)
    context = stages.Context(fast=options.fast, pytest_args=tuple(options.pytest))
    wanted = set(options.only.split(",")) if options.only else None
    outcomes: list[Outcome] = []
    try:
        for stage in stages.ALL:
            if stage.name not in wanted if wanted else (options.fast and not stage.fast):
                continue
            outcomes.append(_run_stage(stage, context))
            if outcomes[-1].problems and options.fail_fast:
                break
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return _summary(outcomes)


if __name__ == "__main__":
    sys.exit(main())

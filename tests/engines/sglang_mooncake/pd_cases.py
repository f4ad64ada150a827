"""SGLang's own Mooncake backend for prefill/decode disaggregation, unchanged, over the stand-in for Mooncake.

A program for SGLang's environment: the world of `sglang_inprocess/pd_world.py`, with SGLang's Mooncake
classes in place of ours. Runs all cases, writes a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engines.sglang_inprocess.pd_world import HOST, PAGES, Request, World, prepare_sglang, world

SOME, OTHERS = [3, 4, 9, 2], [7, 8, 1, 0]
CASES: dict[str, Callable[[World], None]] = {}


def case(function: Callable[[World], None]) -> Callable[[World], None]:
    CASES[function.__name__] = function
    return function


def use_mooncake_classes() -> None:
    """Let the world be made of SGLang's Mooncake classes, each rank with an engine of its own, as each
    process has one.
    """
    from sglang.srt.disaggregation.mooncake import conn
    from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine

    import kvferry_sglang.pd

    class Manager(conn.MooncakeKVManager):  # type: ignore[misc]
        def init_engine(self) -> None:
            self.engine: Any = MooncakeTransferEngine(HOST)
            self.engine.write = None  # what the world counts, of another backend

    kvferry_sglang.pd.conn = SimpleNamespace(  # type: ignore[attr-defined]
        KVFerryKVManager=Manager,
        KVFerryKVSender=conn.MooncakeKVSender,
        KVFerryKVReceiver=conn.MooncakeKVReceiver,
        KVFerryKVBootstrapServer=conn.MooncakeKVBootstrapServer,
    )


@case
def pages_arrive(made: World) -> None:
    Request(made, made.prefill(), made.decode(), SOME, OTHERS).receive().send().done().untouched()


@case
def chunks_of_a_long_prompt_arrive(made: World) -> None:
    near, far = list(range(20)), list(range(PAGES - 1, 3, -1))
    request = Request(made, made.prefill(), made.decode(), near, far).receive()
    for begin in (0, 7, 14):
        request.send(begin, begin + 7)
    request.done().untouched()


@case
def one_rank_serves_two(made: World) -> None:
    Request(made, made.prefill(), made.decode(2), SOME, OTHERS).receive().send().done().untouched()


@case
def many_requests_follow_one_another(made: World) -> None:
    prefill, decode = made.prefill(), made.decode()
    for row in range(6):
        far = list(np.random.default_rng(row).permutation(PAGES)[:4])
        Request(made, prefill, decode, SOME, far, row=row).receive().send().done()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    use_mooncake_classes()
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    prepare_sglang(port)
    for name, run in CASES.items():
        error = ""
        try:
            with world(port) as made:
                run(made)
        except Exception:  # noqa: BLE001  (told to the test)
            error = traceback.format_exc()
        answers.write(json.dumps({"case": name, "error": error}) + "\n")
        answers.flush()
    os._exit(0)  # SGLang's threads do not end by themselves


if __name__ == "__main__":
    main()

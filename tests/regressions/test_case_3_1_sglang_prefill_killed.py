"""Case 3.1: a prefill server of SGLang is killed and started anew; the decode server keeps what it knew.

SGLang notices by heartbeats, after 5 to 10 s. What a decode server learns here comes with the connection
between the two processes' engines, which ends with the process.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvferry.config import TransferOptions
from kvferry_sglang.pd.engine import Hello, PDEngine
from kvferry_sglang.pd.watch import PrefillWatch

WAIT_S = 60.0
PREFILL = """
import sys
from kvferry.config import TransferOptions
from kvferry_sglang.pd.engine import Hello, PDEngine
engine = PDEngine(TransferOptions(), hello=Hello("127.0.0.1", int(sys.argv[2])))
print(engine.send_probe(sys.argv[1]), engine.get_session_id(), flush=True)
sys.stdin.read()
"""


@contextmanager
def prefill(session: str, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has introduced itself to a decode server's engine, and its own session."""
    process = subprocess.Popen(
        [sys.executable, "-c", PREFILL, session, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        status, own = process.stdout.readline().split()
        assert status == "0"
        yield process, own
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


@pytest.fixture
def decode() -> Iterator[PDEngine]:
    engine = PDEngine(TransferOptions(connect_timeout_s=2.0))
    yield engine
    engine.close()


def test_the_end_of_each_prefill_process_is_told_with_its_address(decode: PDEngine) -> None:
    lost: queue.Queue[Hello] = queue.Queue()
    watch = PrefillWatch(decode.engine, lost.put)
    try:
        for port in (4001, 4002):
            with prefill(decode.get_session_id(), port) as (process, _):
                assert lost.empty()
                process.send_signal(signal.SIGKILL)
                assert lost.get(timeout=WAIT_S) == Hello("127.0.0.1", port)
        assert lost.empty()
    finally:
        watch.close()


def test_a_name_of_a_process_that_is_gone_reaches_nobody_else(decode: PDEngine) -> None:
    with prefill(decode.get_session_id(), 4001) as (_, session):
        assert decode.send_probe(session) == 0
    assert decode.send_probe(session) == -1
    assert decode.why(session)
    other = f"{'0' * 31}1@{decode.get_session_id().partition('@')[2]}"  # our address, under another name
    assert decode.send_probe(other) == -1
    assert decode.is_lost(other)

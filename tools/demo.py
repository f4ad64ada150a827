"""Shows KVFerry at work: two real vLLM servers, one prefilling and one decoding, behind the router.

A single vLLM answers first, as the reference; it is stopped before the pair starts. The pair's answers must
be the same, token by token, and must have used KV that was moved. Everything that was started is stopped at
the end, whatever happens.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tools import kept
from tools.client import Answer, Metrics, completion_body, metrics, stream
from tools.demo_report import Pair, block_bytes, print_answers, print_moved
from tools.envs import ROOT, ensure_overlay, python_of
from tools.models import ensure_model
from tools.progress import ToolError, fail, say
from tools.servers import Server, router_server, stop_all, vllm_server

PRODUCER = {"kv_connector": "KVFerryConnector", "kv_role": "kv_producer"}
CONSUMER = {"kv_connector": "KVFerryConnector", "kv_role": "kv_consumer"}
_MAX_TOKENS = 48


@dataclass(frozen=True)
class Set:
    """Where the demo's parts come from."""

    python: Path
    model: Path
    logs: Path


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def prompts() -> list[tuple[str, Any]]:
    """What is asked, each with a short title: short and long, with a shared beginning, not only ASCII."""
    text = (ROOT / "LICENSE").read_text()
    middle = text[2200:6200]
    return [
        ("capital", _chat("What is the capital of France?")),
        ("story", _chat("Write two sentences about a ferry that crosses a wide river at night.")),
        ("accents", _chat("Traduis en anglais : « Où est la gare, s'il vous plaît ? » 東京")),
        ("plain text", "The quick brown fox"),
        ("long, first question", _chat(f"{middle}\n\nWho gives the licence in the text above?")),
        ("long, same text", _chat(f"{middle}\n\nName one duty of the person who redistributes.")),
        ("longer", _chat(f"Summarise in one sentence:\n{text[:4400]}")),
    ]


def _ask_all(url: str, what: str) -> list[Answer]:
    # The first request of a server pays for one-time set-up (and for first contact); it would blur the times.
    stream(url, completion_body("Warm up, please. " * 12, 2))
    answers = []
    for title, prompt in prompts():
        answers.append(stream(url, completion_body(prompt, _MAX_TOKENS)))
        say(f"{what}: {title}: first token after {answers[-1].ttft_s * 1000:.0f} ms")
    return answers


def _reference(parts: Set) -> list[Answer]:
    say("starting a single vLLM for the reference answers")
    single = vllm_server("single", parts.python, parts.model, parts.logs)
    try:
        single.start().wait_ready()
        return _ask_all(single.url, "single vLLM")
    finally:
        single.stop()


def _start_pair(parts: Set, servers: list[Server]) -> Pair:
    say("starting the prefill vLLM and the decode vLLM")
    prefill = vllm_server("prefill", parts.python, parts.model, parts.logs, kv=PRODUCER)
    decode = vllm_server("decode", parts.python, parts.model, parts.logs, kv=CONSUMER)
    servers += [prefill.start(), decode.start()]
    for server in (prefill, decode):
        server.wait_ready()
        say(f"{server.name} vLLM is ready at {server.url}")
    router = router_server(parts.python, [prefill], [decode], parts.logs)
    servers.append(router.start())
    router.wait_ready()
    say(f"router is ready at {router.url}")
    return Pair(prefill, decode, router)


def _compare(pair: Pair, reference: list[Answer], model: Path) -> None:
    before: Metrics = metrics(pair.decode.url)
    answers = _ask_all(pair.router.url, "prefill + decode")
    after: Metrics = metrics(pair.decode.url)
    titles = [title for title, _ in prompts()]
    different = print_answers(titles, reference, answers)
    print_moved(before, after, block_bytes(model))
    if different:
        raise ToolError(f"{different} of {len(answers)} answers differ from those of the single vLLM")


def _run(options: argparse.Namespace, logs: Path, servers: list[Server]) -> None:
    parts = Set(python_of(ensure_overlay("vllm")), ensure_model(options.model), logs)
    reference = _reference(parts)
    pair = _start_pair(parts, servers)
    _compare(pair, reference, parts.model)
    if options.keep:
        kept.detach(servers, logs)
        servers.clear()
        body = '{"model": "model", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 40}'
        print("\nThe servers stay up. Ask them something:\n")
        print(
            f"  curl {pair.router.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n"
        )
        print(f"Logs: {logs}\nStop them with: ./demo --stop", flush=True)


def _parse() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="./demo", description=__doc__, formatter_class=raw)
    parser.add_argument("--keep", action="store_true", help="leave the servers up and print a curl line")
    parser.add_argument("--stop", action="store_true", help="stop the servers that --keep left up")
    choices = ("smollm2", "tiny")
    parser.add_argument(
        "--model", choices=choices, default="smollm2", help="default: %(default)s, real weights"
    )
    return parser.parse_args()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _stop_quietly(servers: list[Server]) -> None:
    """Stop what runs; a second Ctrl-C must not leave half of it behind."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    if servers:
        say("stopping the servers")
        stop_all(servers)


def main() -> int:
    options = _parse()
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, _interrupt)
    servers: list[Server] = []
    logs: Path | None = None
    status = 1
    try:
        if options.stop:
            return kept.stop()
        if options.keep:
            kept.refuse_second()
        logs = Path(tempfile.mkdtemp(prefix="kvferry-demo-"))
        _run(options, logs, servers)
        status = 0
    except ToolError as error:
        fail(error)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        status = 130
    finally:
        _stop_quietly(servers)
        if logs is not None and (not any(logs.iterdir()) or (status == 0 and not options.keep)):
            shutil.rmtree(logs, ignore_errors=True)
        elif logs is not None and status != 0:
            print(f"logs: {logs}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())

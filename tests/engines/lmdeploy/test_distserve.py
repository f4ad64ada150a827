"""The whole of LMDeploy's DistServe: its proxy and our router, a prefill and a decode server with the real
PyTorch engine, and a hybrid server that does all alone. The same tokens must come out.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tools.servers import Server, free_port, router_server, stop_all

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

SHIM = Path(__file__).parent / "shims" / "lmdeploy_cpu.py"
START_S = 400.0
ANSWER_S = 120.0
BLOCK = 16
LONGEST_TOKEN = 12  # characters
QUIET = {"OMP_NUM_THREADS": "1", "no_proxy": "*", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
TEXT = "The quick brown fox jumps over the lazy dog. " * 6


class DistServe(NamedTuple):
    proxy: Server
    router: Server
    prefill: Server
    decode: Server
    hybrid: Server


def server(name: str, python: Path, model: str, logs: Path, blocks: int, *flags: str) -> Server:
    command = [
        str(python), str(SHIM), "serve", "api_server", model, "--backend", "pytorch", "--server-name",
        "127.0.0.1", "--server-port", "{port}", "--model-name", "tiny", "--dtype", "float16",
        "--num-gpu-blocks", str(blocks), "--cache-block-seq-len", str(BLOCK), "--kernel-block-size",
        str(BLOCK), "--session-len", "512", "--max-batch-size", "4", "--eager-mode", "--log-level", "INFO",
        *flags,
    ]  # fmt: skip
    return Server(name, command, logs / f"{name}.log", env=QUIET, port=free_port())


@pytest.fixture(scope="module")
def distserve(lmdeploy_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistServe]:
    logs, model = tmp_path_factory.mktemp("distserve"), os.environ["KVFERRY_MODEL_TINY"]
    words = ["serve", "proxy", "--server-name", "127.0.0.1", "--server-port", "{port}"]
    words += ["--serving-strategy", "DistServe", "--disable-cache-status"]
    proxy = Server(
        "proxy", [str(lmdeploy_python), "-m", "lmdeploy", *words], logs / "proxy.log", env=QUIET,
        health="/nodes/status", port=free_port(),
    )  # fmt: skip
    paired = ("--migration-backend", "KVFerry", "--proxy-url", proxy.url)
    prefill = server("prefill", lmdeploy_python, model, logs, 64, "--role", "Prefill", *paired)
    decode = server("decode", lmdeploy_python, model, logs, 96, "--role", "Decode", *paired)
    router = router_server(lmdeploy_python, [prefill], [decode], logs, flags=("--engine", "lmdeploy"))
    made = DistServe(proxy, router, prefill, decode, server("hybrid", lmdeploy_python, model, logs, 64))
    with ExitStack() as stack:
        stack.callback(stop_all, made)
        proxy.start().wait_ready(START_S)  # servers announce themselves to it as they start
        for each in made[1:]:
            each.start()
        for each in made[2:]:
            each.wait_ready(START_S)
        router.wait_ready(START_S)
        wait_until_it_knows_all(router)
        yield made


def wait_until_it_knows_all(router: Server) -> None:
    """The router looks for its servers twice a second; without the prefill server it would do, too."""
    deadline = time.monotonic() + START_S
    while True:
        with urllib.request.urlopen(router.url + "/health", timeout=ANSWER_S) as page:
            found = json.load(page)
        if found["status"] == "healthy":
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def ask(target: Server, path: str, **fields: Any) -> bytes:
    """An answer; greedy, so that it is the same every time."""
    body = {"model": "tiny", "max_tokens": 12, "temperature": 0, "top_k": 1, "ignore_eos": True,
            "skip_special_tokens": False, **fields}  # fmt: skip
    request = urllib.request.Request(
        target.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as found:
        return bytes(found.read())


def answer(target: Server, prompt: str, **fields: Any) -> str:
    """The text of a completion."""
    return str(json.loads(ask(target, "/v1/completions", prompt=prompt, **fields))["choices"][0]["text"])


def streamed(target: Server, prompt: str) -> str:
    """The text of a completion that comes in pieces."""
    events = ask(target, "/v1/completions", prompt=prompt, stream=True).split(b"\n\n")
    pieces = [json.loads(event[6:]) for event in events if event.startswith(b"data: {")]
    return "".join(each["choices"][0]["text"] for each in pieces)


def chat(target: Server, text: str) -> str:
    """The text of a chat's answer."""
    said = [{"role": "user", "content": text}]
    return str(
        json.loads(ask(target, "/v1/chat/completions", messages=said))["choices"][0]["message"]["content"]
    )


def migrations(distserve: DistServe) -> int:
    """How many prompts the decode server has fetched from the prefill server."""
    log = distserve.decode.log.read_text(errors="replace")
    return len(re.findall(r"migrating session: \d+ done", log))


def same(one: str, other: str) -> bool:
    """Whether two texts are the same, but for the last token of one of them: LMDeploy's text ends without it
    at times, on a server that does all alone too. It tells no token ids of completions.
    """
    shorter, longer = sorted((one, other), key=len)
    return longer.startswith(shorter) and len(longer) - len(shorter) <= LONGEST_TOKEN and len(shorter) > 10


def test_tokens_are_those_of_one_server_that_does_all(distserve: DistServe) -> None:
    texts = [TEXT[:length] for length in (5, 47, 80, 150, 230)]
    expected = [answer(distserve.hybrid, text) for text in texts]
    assert len(set(expected)) == len(texts)  # a model whose answers depend on the prompt
    for text, wanted in zip(texts, expected, strict=True):
        found = answer(distserve.proxy, text)
        assert same(found, wanted), (text, found, wanted)
    assert migrations(distserve) == len(texts)
    log = distserve.decode.log.read_text(errors="replace")
    assert "engine_started" in log, "KVFerry's engine was not used"


def test_through_our_router_they_are_the_same(distserve: DistServe) -> None:
    hybrid, router, before = distserve.hybrid, distserve.router, migrations(distserve)
    for length in (6, 64, 140):
        text = TEXT[:length]
        assert same(answer(router, text), answer(hybrid, text))
    assert same(streamed(router, TEXT[:100]), streamed(hybrid, TEXT[:100]))
    assert same(chat(router, TEXT[:90]), chat(hybrid, TEXT[:90]))
    assert migrations(distserve) == before + 5, router.log.read_text()


def test_what_our_router_does_not_split_the_decode_server_computes_alone(distserve: DistServe) -> None:
    before = migrations(distserve)
    found, wanted = (answer(each, TEXT[:70], max_tokens=1) for each in (distserve.router, distserve.hybrid))
    assert found == wanted
    assert migrations(distserve) == before

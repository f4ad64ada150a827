"""The engines of one run of the benchmark, and what they took."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from engines.engine_lab import Lab, LabEngine
from kvferry.testing.nodes import NodeChild

BLOCK = 32  # tokens
PREFIX, TAIL = 62 * BLOCK, 16  # tokens: whole blocks, and less than one
# The whole prompt in one step: ExampleConnector does not keep prompts that are computed in chunks.
ENGINE = {"num_gpu_blocks_override": 1024, "max_num_batched_tokens": 2048}
READY_S = 300.0

Timed = dict[str, Any]


class Run:
    """Engines of one run, and the seconds that each case took."""

    def __init__(self, lab: Lab, folder: Path, *, rounds: int, model: Path, seed: int = 1) -> None:
        self.lab = lab
        self.folder = folder
        self.rounds = rounds
        self.model = model
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.token_bytes = token_bytes(model)
        self._random = random.Random(seed)

    def tokens(self, count: int) -> list[int]:
        """A prompt that shares nothing with others."""
        return [self._random.randrange(300, 2000) for _ in range(count)]

    def start(
        self, kv: Mapping[str, Any] | None, environ: Mapping[str, str] | None = None, **llm: Any
    ) -> LabEngine:
        """An engine with this KV transfer configuration of vLLM's, warmed up."""
        engine = self.lab.start(None, kv=kv, environ=environ, model=str(self.model), **{**ENGINE, **llm})
        for _ in range(2):
            self.ask(engine, self.tokens(600), max_tokens=8)
        self.forget(engine)
        return engine

    def ours(self, cluster: Path, role: str = "kv_both", **llm: Any) -> LabEngine:
        """An engine with our connector, attached to the node of a cluster."""
        options = {"cluster.directory": str(cluster), "log.level": "warning"}
        return self.start(
            {"kv_connector": "KVFerryConnector", "kv_role": role, "kv_connector_extra_config": options}, **llm
        )

    def ask(self, engine: LabEngine, prompt: Sequence[int], max_tokens: int = 1, **more: Any) -> Timed:
        """One prompt, nothing else going on in that engine."""
        answer: Timed = engine.call("timed", prompts=[list(prompt)], max_tokens=max_tokens, **more)
        return answer

    def first_token(self, case: str, engine: LabEngine, prefix: Sequence[int], *, hit: bool) -> None:
        """Time a prompt that begins with the prefix and ends as no other.

        RuntimeError if the prefix was found when it should not, or the other way round: then the figure means
        something else.
        """
        answer = self.ask(engine, [*prefix, *self.tokens(TAIL)])
        if (answer["cached"] >= PREFIX) is not hit:
            raise RuntimeError(f"{case}: {answer['cached']} of {PREFIX} tokens were found")
        self.seconds[case].append(answer["seconds"])

    def forget(self, engine: LabEngine) -> None:
        """Let the engine forget its own prefixes; what it had to save is saved by now."""
        engine.all_blocks_free(60.0)
        if not engine.call("forget_prefixes"):
            raise RuntimeError(f"{engine.name} could not forget its prefixes")

    def ms(self, case: str) -> float:
        """The best round of a case, in milliseconds: other programs' load only adds to it."""
        return 1e3 * min(self.seconds[case])


def token_bytes(model: Path) -> int:
    """Bytes of KV cache that a token of a model takes in float32."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    return int(config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * size * 2 * 4)


def fresh_folder(parent: Path, name: str) -> Path:
    """A folder that only its owner may enter, as a cluster's has to be."""
    folder = parent / name
    folder.mkdir(0o700)
    return folder


def node(stack: ExitStack, folder: Path, *flags: str, environ: Mapping[str, str] | None = None) -> NodeChild:
    """A node of our pool, until the stack ends."""
    return stack.enter_context(NodeChild(folder, *flags, environ=environ))


@contextmanager
def awake(*engines: LabEngine) -> Iterator[None]:
    """Let engines run that otherwise stand still (SIGSTOP), since threads of theirs never rest."""
    for engine in engines:
        engine.signal(signal.SIGCONT)
    try:
        yield
    finally:
        for engine in engines:
            engine.signal(signal.SIGSTOP)


def both(first: Any, second: Any) -> None:
    """Run two calls at the same time."""
    thread = threading.Thread(target=first)
    thread.start()
    second()
    thread.join(READY_S)

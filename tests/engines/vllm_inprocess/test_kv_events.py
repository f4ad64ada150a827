"""The prefix index, fed with a real vLLM's KV cache events, is exactly what that vLLM holds."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.harness import ROOT, until
from engines.vllm_inprocess.prompts import BLOCK
from kvferry.index import PrefixIndex
from kvferry.router.events import EventFeed, EventSource

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

NAME = "engine"


def documented() -> dict[str, Any]:
    """What docs/vllm.md tells to give to `--kv-events-config`."""
    text = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(re.findall(r"--kv-events-config '([^']*)'", text)[0])
    assert config["endpoint"].startswith("ipc://")
    return config


class Followed:
    """An engine whose events are listened to."""

    def __init__(self, lab: Lab, folder: Path, *, blocks: int, model: str | None = None) -> None:
        self.endpoint, self.replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        events = {**documented(), "endpoint": self.endpoint, "replay_endpoint": self.replay}
        named = {} if model is None else {"model": model}
        self.engine: LabEngine = lab.start(
            None, events=events, num_gpu_blocks_override=blocks, max_model_len=1024, **named
        )
        self.index = PrefixIndex([NAME])
        self.feed: EventFeed | None = None

    def listen(self) -> None:
        self.feed = EventFeed([EventSource(NAME, self.endpoint, self.replay)], self.index)

    def known(self) -> dict[str, int]:
        blocks = self.index.engines[NAME]
        hashes = sorted(block for _, block in blocks.known_hashes)
        return dict(zip(map(str, hashes), blocks.references(hashes), strict=True))

    def agree(self) -> None:
        """Wait until the index holds what the engine holds, with as many copies."""
        held = self.engine.call("cached_blocks")
        until(lambda: self.known() == held, f"the index to hold {len(held)} blocks as the engine does")
        assert self.index.engines[NAME].complete


@pytest.fixture
def followed(lab: Lab, tmp_path: Path) -> Iterator[Followed]:
    made = Followed(lab, tmp_path, blocks=48)  # few, so that requests evict one another's
    yield made
    if made.feed is not None:
        made.feed.close()
    lab.stop(made.engine)


def test_the_index_is_what_the_engine_holds_after_random_requests(followed: Followed) -> None:
    engine, chance = followed.engine, random.Random(7)
    heads = [[chance.randrange(3, 2000) for _ in range(BLOCK * 6)] for _ in range(4)]

    def prompt() -> list[int]:
        head = chance.choice(heads)[: chance.randrange(BLOCK * 6)]
        return head + [chance.randrange(3, 2000) for _ in range(chance.randrange(1, BLOCK * 3))]

    engine.run([prompt() for _ in range(6)], 4)
    followed.listen()  # late, so that what was before has to be asked for
    followed.agree()
    for round_ in range(6):
        prompts = [prompt() for _ in range(6)]
        engine.run([*prompts, prompts[0]], chance.randrange(1, BLOCK))  # twice at once: copies of blocks
        followed.agree()
        asked = prompt()
        [answer] = engine.run([asked], 1)
        followed.agree()
        if round_ == 3:
            assert engine.call("forget_prefixes")
            engine.run([asked], 1)
            followed.agree()
        assert answer["cached"] is not None
    assert engine.metric("prefix_cache_hits_total") > 0


def test_the_hit_that_is_foretold_is_the_hit_that_the_engine_has(followed: Followed) -> None:
    followed.listen()
    engine = followed.engine
    base = list(range(10, 10 + BLOCK * 5))
    engine.run([base], 1)
    followed.agree()
    for asked in (
        base,
        base[: BLOCK * 3 + 5],
        [*base, 5, 6, 7],
        [*base[:BLOCK], 1, *base[BLOCK:]],
        [1, *base],
        base[: BLOCK - 1],
        [*base, *range(900, 1000)],
    ):
        foretold = followed.index.hits(asked)[NAME]
        [answer] = engine.run([asked], 1)
        assert foretold == answer["cached"]
        followed.agree()

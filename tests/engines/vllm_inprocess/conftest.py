from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.vllm_inprocess.prompts import MAX_TOKENS


class Reference:
    """What a single vLLM without a connector answers; asked once per prompt."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._engine: LabEngine | None = None
        self._known: dict[str, list[int]] = {}

    def tokens(self, prompts: Sequence[Sequence[int]], max_tokens: int = MAX_TOKENS) -> list[list[int]]:
        keys = [json.dumps([list(prompt), max_tokens]) for prompt in prompts]
        new = [prompt for prompt, key in zip(prompts, keys, strict=True) if key not in self._known]
        if new:
            self._engine = self._engine or self._lab.start(None)
            for prompt, answer in zip(new, self._engine.run(new, max_tokens), strict=True):
                self._known[json.dumps([list(prompt), max_tokens])] = answer["tokens"]
        return [self._known[key] for key in keys]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Starts engines quickly: vLLM is imported once."""
    made = Lab(tmp_path_factory.mktemp("engines"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def reference(lab: Lab) -> Reference:
    return Reference(lab)


@pytest.fixture(scope="session")
def session_prefill(lab: Lab) -> LabEngine:
    return lab.start("kv_producer")


@pytest.fixture(scope="session")
def session_decode(lab: Lab) -> LabEngine:
    return lab.start("kv_consumer")


def _fresh(engine: LabEngine) -> LabEngine:
    engine.call("stepping", on=True)
    engine.all_blocks_free()
    assert engine.call("forget_prefixes")
    return engine


@pytest.fixture
def prefill(session_prefill: LabEngine) -> Iterator[LabEngine]:
    """A prefill engine with empty caches; all its blocks must be free again at the end."""
    yield _fresh(session_prefill)
    session_prefill.all_blocks_free()


@pytest.fixture
def decode(session_decode: LabEngine) -> Iterator[LabEngine]:
    """A decode engine with empty caches; all its blocks must be free again at the end."""
    yield _fresh(session_decode)
    session_decode.all_blocks_free()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the ends of the engines' logs to the report of a failed test."""
    report = yield
    for value in getattr(item, "funcargs", {}).values() if report.failed else ():
        if isinstance(value, LabEngine):
            report.sections.append((value.name, value.log.read_text(errors="replace")[-3000:]))
    return report

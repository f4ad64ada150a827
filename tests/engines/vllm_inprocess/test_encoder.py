"""Encoder outputs shared through the store, on real vLLM with a tiny audio model (EPD)."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.harness import ROOT, model_folder, until
from kvferry.testing.nodes import NodeChild

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SOUND = "<|audio_bos|><|AUDIO|><|audio_eos|>"
QUESTION = f"Audio 1: {SOUND} What is it?"
BOTH = f"Audio 1: {SOUND} Audio 2: {SOUND} Which one is louder?"
TOKENS = 12
LOADED = "kvferry_encoder_loads_total|loaded"
ABSENT = "kvferry_encoder_loads_total|absent"
FAILED = "kvferry_encoder_loads_total|failed"
LATE = "kvferry_encoder_loads_total|late"
STORED = "kvferry_encoder_saves_total|stored"
SOUND_BYTES = 25 * 256 * 4  # embeddings of a second, hidden size, float32


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeChild]:
    with NodeChild(tmp_path_factory.mktemp("node"), "--dram", "64MiB") as started:
        yield started


def documented(role: str) -> dict[str, str]:
    """What docs/vllm.md and docs/vllm-migration.md tell to give to `--ec-transfer-config` for a role."""
    pages = [ROOT / "docs" / name for name in ("vllm.md", "vllm-migration.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    found = [json.loads(each) for each in re.findall(r"--ec-transfer-config '([^']*)'", text)]
    [config] = {json.dumps(each, sort_keys=True) for each in found if each["ec_role"] == role}
    return dict(json.loads(config))


def start(
    lab: Lab, role: str | None, node: NodeChild | None, folder: Path | None = None, **options: Any
) -> LabEngine:
    """An engine on the audio model; `role` None: without a connector."""
    where = str(node.cluster.directory if node is not None else folder)
    extra = {"log.level": "debug", "cluster.directory": where, **options}
    ec = {**documented(role), "ec_connector_extra_config": extra} if role else None
    engine = lab.start(None, ec=ec, model=str(model_folder("audio")), enable_prefix_caching=False)
    assert engine.call("count_encoded") == 0
    return engine


@pytest.fixture(scope="module")
def expected(lab: Lab) -> dict[int | tuple[int, int], list[int]]:
    """What a vLLM without any connector answers, by sound."""
    engine = start(lab, None, None)
    found: dict[int | tuple[int, int], list[int]] = {
        sound: ask(engine, sound)["tokens"] for sound in range(1, 9)
    }
    [both] = engine.wait([engine.add_sounds(BOTH, [1, 2], TOKENS)])
    found[1, 2] = both["tokens"]
    lab.stop(engine)
    distinct = {tuple(tokens) for tokens in found.values()}
    assert len(distinct) == len(found), "answers that do not depend on the sounds prove nothing"
    return found


@pytest.fixture(scope="module")
def encoder(lab: Lab, node: NodeChild) -> LabEngine:
    return start(lab, "ec_producer", node)


@pytest.fixture(scope="module")
def consumer(lab: Lab, node: NodeChild) -> LabEngine:
    return start(lab, "ec_consumer", node, **{"encoder.wait_s": 60})


@pytest.fixture(scope="module")
def both(lab: Lab, node: NodeChild) -> LabEngine:
    return start(lab, "ec_both", node, **{"encoder.wait_s": 60})


def ask(engine: LabEngine, sound: int, params: Any = None) -> Any:
    [answer] = engine.wait([engine.add_sounds(QUESTION, [sound], TOKENS, params)])
    return answer


def encode(engine: LabEngine, sound: int, prompt: str = QUESTION) -> dict[str, Any]:
    """Have a sound encoded as a proxy does; returns what the encoder says of it."""
    [answer] = engine.wait([engine.add_sounds(prompt, [sound], 1)])
    media: dict[str, Any] = answer["media"]
    return media


def test_encoded_once_and_used_by_two_prefill_engines(encoder, consumer, both, expected) -> None:
    media = [encode(encoder, sound) for sound in (1, 2, 3)]
    assert encoder.call("count_encoded") == 3
    assert all(len(each) == 1 for each in media)
    for engine in (consumer, both):
        before = engine.metric(LOADED)
        for sound, params in zip((1, 2, 3), media, strict=True):
            assert ask(engine, sound, params)["tokens"] == expected[sound]
        assert engine.call("count_encoded") == 0, "the encoder ran although the store has the outputs"
        assert engine.metric(LOADED) - before == 3
        assert engine.metric(FAILED) == 0
    assert consumer.metric("kvferry_encoder_loaded_bytes_total") == 3 * SOUND_BYTES
    [answer] = both.wait([both.add_sounds(BOTH, [1, 2], TOKENS)])
    assert answer["tokens"] == expected[1, 2]


def test_what_nobody_encoded_is_encoded_here(consumer, expected) -> None:
    before = consumer.metric(ABSENT), consumer.call("count_encoded")
    assert ask(consumer, 4)["tokens"] == expected[4]
    assert (consumer.metric(ABSENT), consumer.call("count_encoded")) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("params", [5, "x", ["x"], {"x": 5}])
def test_whatever_a_client_sends_as_parameters_does_no_harm(consumer, expected, params) -> None:
    assert ask(consumer, 4, params)["tokens"] == expected[4]


def test_an_output_on_its_way_is_waited_for_and_put_anew_if_the_store_forgot_it(
    node, encoder, consumer, expected
) -> None:
    media = encode(encoder, 5)
    encoded = encoder.call("count_encoded"), consumer.call("count_encoded")
    with node.open() as store:
        until(lambda: len(list(store.scan(b"encoder/"))) > 0, "the output to be stored")
        store.remove_many([each.key for each in store.scan(b"encoder/")])
    waiting = consumer.add_sounds(QUESTION, [5], TOKENS, media)
    assert encode(encoder, 5) == media
    [answer] = consumer.wait([waiting])
    assert answer["tokens"] == expected[5]
    assert (encoder.call("count_encoded"), consumer.call("count_encoded")) == encoded


def test_what_a_whole_engine_encodes_others_load(both, consumer, expected) -> None:
    before = both.metric(STORED), both.call("count_encoded"), consumer.call("count_encoded")
    assert ask(both, 7)["tokens"] == expected[7]
    until(lambda: both.metric(STORED) == before[0] + 1 or step(both), "the output to be stored and counted")
    assert ask(consumer, 7)["tokens"] == expected[7]
    assert (both.call("count_encoded"), consumer.call("count_encoded")) == (before[1] + 1, before[2])


def step(engine: LabEngine) -> bool:
    """Give the engine a step, so that its workers report; never true."""
    engine.run([[5, 6, 7]], 1)
    return False


def test_a_node_that_is_missing_hangs_or_dies_costs_nothing_but_the_sharing(lab, tmp_path, expected) -> None:
    engine = start(lab, "ec_both", None, tmp_path, **{"encoder.wait_s": 0.5, "store.timeout_s": 1})
    assert ask(engine, 1)["tokens"] == expected[1]
    assert ask(engine, 2)["tokens"] == expected[2]
    assert engine.metric(FAILED) + engine.metric(LATE) == 2
    with NodeChild(tmp_path, "--dram", "64MiB") as node:
        until(lambda: ask(engine, 1) and engine.metric(STORED) > 0, "the node to be found and used")
        node.process.send_signal(signal.SIGSTOP)
        assert ask(engine, 3)["tokens"] == expected[3]
        assert ask(engine, 4)["tokens"] == expected[4]
        node.process.kill()
        assert ask(engine, 5)["tokens"] == expected[5]
        assert engine.call("count_encoded") == 5
    lab.stop(engine)


def test_a_model_that_differs_in_its_type_shares_nothing(lab, node, encoder) -> None:
    encode(encoder, 8)
    extra = {"cluster.directory": node.cluster.directory}
    half = lab.start(
        None,
        ec={**documented("ec_consumer"), "ec_connector_extra_config": extra},
        model=str(model_folder("audio")),
        dtype="bfloat16",
    )
    assert half.call("count_encoded") == 0
    ask(half, 8)
    assert half.call("count_encoded") == 1
    lab.stop(half)


PICTURE = "<image>"
PICTURES = f"Image 1: {PICTURE} Image 2: {PICTURE} What changed?"


def test_images_are_encoded_prefilled_and_answered_by_three_engines(lab: Lab, node: NodeChild) -> None:
    """Idefics 3: the encoder's output goes through the store, then the prompt's KV cache to the third one."""
    model = {"model": str(model_folder("images"))}
    extra = {"cluster.directory": str(node.cluster.directory), "encoder.wait_s": 60}

    def sharing(role: str) -> dict[str, Any]:
        return {**documented(role), "ec_connector_extra_config": extra}

    with (
        lab.engine(None, ec=sharing("ec_producer"), enable_prefix_caching=False, **model) as encoder,
        lab.engine("kv_producer", ec=sharing("ec_consumer"), **model) as prefill,
        lab.engine("kv_consumer", **model) as decode,
    ):
        for engine in (encoder, prefill, decode):
            assert engine.call("count_encoded") == 0
        [alone] = decode.wait([decode.add_images(PICTURES, [1, 2], TOKENS)])
        [other] = decode.wait([decode.add_images(PICTURES, [2, 1], TOKENS)])
        assert alone["tokens"] != other["tokens"], "answers that do not depend on the images prove nothing"
        assert decode.call("forget_prefixes")
        media: dict[str, Any] = {}
        for image in (1, 2):
            [said] = encoder.wait([encoder.add_images(PICTURE, [image], 1)])
            media |= said["media"]
        assert len(media) == 2
        order = {"ec_transfer_params": media, "kv_transfer_params": {"do_remote_decode": True}}
        [handed] = prefill.wait([prefill.add_images(PICTURES, [1, 2], 1, order)])
        order = {"kv_transfer_params": handed["params"]}
        [answer] = decode.wait([decode.add_images(PICTURES, [1, 2], TOKENS, order)])
        assert answer["tokens"] == alone["tokens"]
        assert (encoder.call("count_encoded"), prefill.call("count_encoded")) == (2, 0)
        assert prefill.metric(LOADED) == 2
        assert decode.metric("kvferry_handoff_loads_total|loaded") == 1
        prefill.all_blocks_free()
        decode.all_blocks_free()

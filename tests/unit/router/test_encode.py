"""Encode servers: each medium of a chat goes to one of them, before the prompt is computed elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from kvferry.router import encode as encode_module
from kvferry.router.encode import media_of
from kvferry.testing.fake_openai import Behaviour, FakeServer, Leases
from kvferry.testing.router_cluster import RouterCluster

CHAT = "/v1/chat/completions"


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}}


def sound(name: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": name, "format": "wav"}}


def chat(*parts: Mapping[str, Any], **fields: Any) -> bytes:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]},
    ]
    return msgspec.json.encode({"model": "fake", "messages": messages, "max_tokens": 4, **fields})


def named(name: str) -> Behaviour:
    """An encode server's answer."""
    body = {"choices": [{"message": {}}], "ec_transfer_params": {name: {"size_bytes": 8}}}
    return Behaviour(body=msgspec.json.encode(body))


@asynccontextmanager
async def cluster_with(
    encode: int = 1, prefill: int = 1, **options: Any
) -> AsyncIterator[tuple[RouterCluster, list[FakeServer]]]:
    servers = [FakeServer(Leases()) for _ in range(encode)]
    for server in servers:
        await server.start()
    try:
        urls = tuple(server.url for server in servers)
        async with RouterCluster(prefill, encode=urls, **options) as cluster:
            yield cluster, servers
    finally:
        for server in servers:
            await server.stop()


async def test_each_medium_is_encoded_once_before_the_prompt_is_computed() -> None:
    async with cluster_with() as (cluster, (encoder,)):
        encoder.script = [named("a"), named("b")]
        body = chat(image("AA"), sound("BB"), image("AA"), mm_processor_kwargs={"crop": 1}, seed=3)
        assert (await cluster.complete(path=CHAT, raw=body))[0] == 200
        asked = [call.body for call in encoder.calls]
        parts = {json.dumps(one["messages"]) for one in asked}
        wanted = (image("AA"), sound("BB"))
        assert parts == {json.dumps([{"role": "user", "content": [part]}]) for part in wanted}
        assert len(asked) == 2
        rest = {"model": "fake", "mm_processor_kwargs": {"crop": 1}, "max_tokens": 1, "stream": False}
        assert all({**one, "messages": None} == {**rest, "messages": None} for one in asked)
        (at_p,), (at_d,) = cluster.prefill[0].calls, cluster.decode[0].calls
        assert at_p.body["ec_transfer_params"] == {"a": {"size_bytes": 8}, "b": {"size_bytes": 8}}
        assert "ec_transfer_params" not in at_d.body  # it gets the KV cache
        assert at_d.body["messages"] == json.loads(body)["messages"]
        assert cluster.metric("encode_total", outcome="encoded") == 2
        assert (
            cluster.metric("backend_requests_total", role="encode", backend=encoder.url, outcome="done") == 2
        )


async def test_without_prefill_servers_the_decode_server_is_told() -> None:
    async with cluster_with(prefill=0) as (cluster, (encoder,)):
        encoder.behaviour = named("a")
        assert (await cluster.complete(path=CHAT, raw=chat(image("AA"))))[0] == 200
        assert cluster.decode[0].calls[0].body["ec_transfer_params"] == {"a": {"size_bytes": 8}}


async def test_what_has_no_media_goes_past_them() -> None:
    async with cluster_with() as (cluster, (encoder,)):
        assert (await cluster.complete())[0] == 200
        assert (await cluster.complete(path=CHAT, raw=chat()))[0] == 200
        assert encoder.calls == []
        assert "ec_transfer_params" not in cluster.prefill[0].calls[-1].body


async def test_media_are_spread_over_the_servers() -> None:
    async with cluster_with(encode=2) as (cluster, servers):
        hold = asyncio.Event()
        for server, name in zip(servers, "ab", strict=True):
            server.behaviour = Behaviour(hold=hold, body=named(name).body)
        asking = asyncio.ensure_future(
            cluster.complete(path=CHAT, raw=chat(*(image(f"A{number}") for number in range(4))))
        )
        for server in servers:
            await server.wait_for_calls(2)
        hold.set()
        assert (await asking)[0] == 200
        assert [len(server.calls) for server in servers] == [2, 2]


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        (Behaviour(status=500), "failed"),
        (Behaviour(drop=True), "failed"),
        (Behaviour(body=b"no JSON"), "failed"),
        (Behaviour(body=b'{"ec_transfer_params": 7}'), "failed"),
        (Behaviour(status=400), "refused"),
        (Behaviour(body=b'{"choices": []}'), "refused"),
    ],
    ids=["500", "drop", "text", "number", "400", "nothing"],
)
async def test_what_is_not_encoded_here_is_encoded_where_the_prompt_is(
    behaviour: Behaviour, outcome: str
) -> None:
    async with cluster_with() as (cluster, (encoder,)):
        encoder.script = [named("a"), behaviour]
        status, _ = await cluster.complete(path=CHAT, raw=chat(image("AA"), image("BB")))
        assert status == 200
        assert cluster.prefill[0].calls[0].body["ec_transfer_params"] == {"a": {"size_bytes": 8}}
        assert cluster.metric("encode_total", outcome=outcome) == 1


async def test_a_request_does_not_become_more_than_it_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_module, "MOST_MEDIA", 3)
    async with cluster_with() as (cluster, (encoder,)):
        encoder.behaviour = named("a")
        images = [image(f"A{number}") for number in range(5)]
        assert (await cluster.complete(path=CHAT, raw=chat(*images)))[0] == 200
        assert len(encoder.calls) == 3
        large = {"crop": "x" * encode_module.MOST_KEPT_BYTES}
        assert (await cluster.complete(path=CHAT, raw=chat(*images, mm_processor_kwargs=large)))[0] == 200
        assert len(encoder.calls) == 3
        assert len(cluster.prefill[0].calls) == 2


async def test_a_server_that_takes_too_long_is_not_waited_for() -> None:
    async with cluster_with(encode_timeout_s=0.2) as (cluster, (encoder,)):
        encoder.behaviour = Behaviour(hold=asyncio.Event())
        assert (await cluster.complete(path=CHAT, raw=chat(image("AA"))))[0] == 200
        assert "ec_transfer_params" not in cluster.prefill[0].calls[0].body
        await asyncio.wait_for(encoder.calls[0].ended.wait(), 30)
        assert encoder.calls[0].aborted


async def test_a_server_that_is_gone_is_left_out() -> None:
    async with cluster_with(encode=2) as (cluster, (gone, other)):
        other.behaviour = named("a")
        await gone.stop()
        for _ in range(3):
            assert (await cluster.complete(path=CHAT, raw=chat(image("AA"))))[0] == 200
        assert len(other.calls) == 3
        assert cluster.metric("encode_total", outcome="encoded") == 3
        status, page = await cluster.get("/health")
        assert (status, json.loads(page)["status"]) == (200, "degraded")
        assert f"encode server {gone.url} is down" in json.loads(page)["reasons"][0]


async def test_a_client_that_leaves_ends_the_encoding() -> None:
    async with cluster_with() as (cluster, (encoder,)):
        encoder.behaviour = Behaviour(hold=asyncio.Event())
        asking = asyncio.ensure_future(cluster.complete(path=CHAT, raw=chat(image("AA"))))
        call = await encoder.wait_for_calls(1)
        asking.cancel()
        await asyncio.wait_for(call.ended.wait(), 30)
        assert call.aborted
        assert cluster.prefill[0].calls == []


@pytest.mark.parametrize(
    "messages", [None, 5, "x", [5], [{"content": 5}], [{"content": [5, {"type": []}, {"type": "text"}]}]]
)
def test_whatever_a_client_sends_as_messages_does_no_harm(messages: Any) -> None:
    assert list(media_of({"messages": messages})) == []

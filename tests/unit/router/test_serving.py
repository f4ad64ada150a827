"""Requests that go well: what each engine gets, what the client gets, and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from kvferry.router.upstream import request_headers
from kvferry.scheduling import Placement, RequestFeatures, Snapshot
from kvferry.testing.fake_openai import DONE_EVENT, Behaviour, token_events
from kvferry.testing.router_cluster import RouterCluster, request_body

CHAT = {"prompt": None, "messages": [{"role": "user", "content": "héllo"}]}


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/completions", {}), ("/v1/chat/completions", CHAT)], ids=["completion", "chat"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_prompt_is_computed_by_p_and_handed_to_d(
    path: str, fields: dict[str, Any], stream: bool
) -> None:
    async with RouterCluster() as cluster:
        body = request_body(**fields, stream=stream)
        status, answer = await cluster.complete(path=path, raw=body)
        (at_p,), (at_d,) = cluster.prefill[0].calls, cluster.decode[0].calls
        assert status == 200
        assert (at_p.path, at_d.path) == (path, path)
        assert (at_p.body["max_tokens"], at_p.body["stream"]) == (1, False)
        assert at_p.body["kv_transfer_params"]["do_remote_decode"] is True
        handed = at_d.body.pop("kv_transfer_params")
        assert at_d.body == json.loads(body)
        assert (handed["do_remote_prefill"], handed["kvferry"]) == (True, {"lease": "lease-1"})
        assert (cluster.leases.loaded, cluster.leases.open, cluster.leases.released) == (
            ["lease-1"],
            set(),
            [],
        )
        assert (answer == b"".join(token_events(4))) if stream else (json.loads(answer)["choices"][0]["text"])


async def test_request_id_reaches_both_engines_and_the_client() -> None:
    async with (
        RouterCluster() as cluster,
        cluster.client.post(
            cluster.router.url + "/v1/completions",
            data=request_body(),
            headers={"X-Request-Id": "mine-1", "Content-Type": "application/json"},
        ) as response,
    ):
        assert response.headers["X-Request-Id"] == "mine-1"
        assert json.loads(await response.read())["id"] == "cmpl-mine-1"
        assert cluster.prefill[0].calls[0].headers["X-Request-Id"] == "mine-1"


async def test_a_missing_request_id_is_made_and_the_same_for_both() -> None:
    async with RouterCluster() as cluster:
        await cluster.complete()
        ids = {engine.calls[0].headers["X-Request-Id"] for engine in (*cluster.prefill, *cluster.decode)}
        assert len(ids) == 1
        assert len(ids.pop()) == 32


async def test_headers_go_to_both_engines_and_come_back() -> None:
    async with RouterCluster() as cluster:
        cluster.decode[0].behaviour = Behaviour(headers={"X-Model-Note": "ü", "Connection": "x-own"})
        headers = {
            "Authorization": "Bearer key",
            "Content-Type": "application/json",
            "X-Tenant": "a",
            "Connection": "X-Hop",
            "X-Hop": "1",
            "Cookie": "session=1",
        }
        async with cluster.client.post(
            cluster.router.url + "/v1/completions", data=request_body(), headers=headers
        ) as response:
            assert response.headers["X-Model-Note"] == "ü"
            assert response.headers["Server"] == "kvferry-router"
        for engine in (*cluster.prefill, *cluster.decode):
            got = engine.calls[0].headers
            assert (got["Authorization"], got["X-Tenant"], got["Cookie"]) == ("Bearer key", "a", "session=1")
            assert "X-Hop" not in got
            assert got["Host"] == engine.url.removeprefix("http://")


def test_hop_by_hop_headers_stay_behind() -> None:
    sent = {
        "Transfer-Encoding": "chunked",
        "TE": "x",
        "Content-Length": "3",
        "Content-Encoding": "gzip",
        "A": "b",
    }
    assert dict(request_headers(sent, "id")) == {"A": "b", "X-Request-Id": "id"}


async def test_compressed_request_bodies_are_understood() -> None:
    async with (
        RouterCluster() as cluster,
        cluster.client.post(
            cluster.router.url + "/v1/completions",
            data=request_body(prompt="z" * 5000),
            headers={"Content-Type": "application/json"},
            compress="gzip",
        ) as response,
    ):
        assert response.status == 200
        assert cluster.decode[0].calls[0].body["prompt"] == "z" * 5000


async def test_first_token_is_there_before_the_second_exists() -> None:
    async with RouterCluster() as cluster:
        events = token_events(3)
        gates = {number: asyncio.Event() for number in range(len(events))}
        cluster.decode[0].behaviour = Behaviour(chunks=events, gates=gates)
        async with await post_stream(cluster) as response:
            for number, event in enumerate(events):
                gates[number].set()
                assert await response.content.readexactly(len(event)) == event
            assert await response.content.read() == b""


async def post_stream(cluster: RouterCluster, **fields: Any) -> Any:
    """Start a streaming request whose first token may be gated: returns once the answer's headers are due."""
    url = cluster.router.url + "/v1/completions"
    gate = cluster.decode[0].behaviour.gates.get(0)
    if gate is not None:
        gate.set()
    return await cluster.client.post(
        url, data=request_body(stream=True, **fields), headers={"Content-Type": "application/json"}
    )


async def test_bytes_are_exact_however_the_engine_cuts_them() -> None:
    text = (
        "data: " + json.dumps({"choices": [{"text": "naïve 日本語 🦀 \\n\\n"}]}, ensure_ascii=False) + "\n\n"
    )
    whole = text.encode() * 3 + b": comment\n\n" + b"event: x\r\ndata: 1\r\n\r\n" + DONE_EVENT
    for size in (1, 2, 3, 7, 64, len(whole)):
        async with RouterCluster(prefill=0) as cluster:
            cluster.decode[0].behaviour = Behaviour(
                chunks=[whole[at : at + size] for at in range(0, len(whole), size)]
            )
            status, answer = await cluster.complete(stream=True)
            assert (status, answer) == (200, whole)


async def test_an_event_larger_than_what_is_held_back_passes() -> None:
    big = b"data: " + b"x" * (3 << 20) + b"\n\n"
    async with RouterCluster(prefill=0) as cluster:
        cluster.decode[0].behaviour = Behaviour(chunks=[big[: 2 << 20], big[2 << 20 :], DONE_EVENT])
        assert await cluster.complete(stream=True) == (200, big + DONE_EVENT)


async def test_a_slow_client_gets_everything_and_holds_nobody_up() -> None:
    chunk = b"data: " + b"y" * 65_000 + b"\n\n"
    async with RouterCluster() as cluster:
        cluster.decode[0].script = [Behaviour(chunks=[chunk] * 400 + [DONE_EVENT])]
        slow = await post_stream(cluster)
        await asyncio.sleep(0.2)  # 26 MB are waiting at the engine; only the sockets' buffers may be filled
        assert not cluster.decode[0].calls[0].ended.is_set()
        for _ in range(5):
            assert (await asyncio.wait_for(cluster.complete(), 30))[0] == 200
        received = 0
        async with slow:
            async for part in slow.content.iter_any():
                received += len(part)
        assert received == len(chunk) * 400 + len(DONE_EVENT)


async def test_64_requests_at_once_each_get_their_own_answer() -> None:
    async with RouterCluster(prefill=2, decode=2) as cluster:
        for engine in (*cluster.prefill, *cluster.decode):
            engine.behaviour = Behaviour(gap_s=0.005)

        async def one(number: int) -> None:
            headers = {"X-Request-Id": f"r{number}"}
            if number % 2:
                status, answer = await cluster.complete(headers=headers, prompt=f"p{number}", stream=True)
                assert (status, answer) == (200, b"".join(token_events(4)))
            else:
                status, answer = await cluster.complete(headers=headers, prompt=f"p{number}")
                assert (status, json.loads(answer)["id"]) == (200, f"cmpl-r{number}")

        await asyncio.gather(*(one(number) for number in range(64)))
        for side in (cluster.prefill, cluster.decode):
            assert [len(engine.calls) for engine in side] == [32, 32]
        assert (len(cluster.leases.loaded), cluster.leases.open) == (64, set())
        assert cluster.metric("requests_total", endpoint="/v1/completions", outcome="done") == 64


@pytest.mark.parametrize(
    "fields", [{"n": 2}, {"prompt": ["a", "b"]}, {"echo": True, "logprobs": 1}, {"max_tokens": 0}]
)
async def test_what_cannot_be_split_goes_to_decode_alone(fields: dict[str, Any]) -> None:
    async with RouterCluster() as cluster:
        status, _ = await cluster.complete(**fields)
        assert status == 200
        assert cluster.prefill[0].calls == []
        assert cluster.decode[0].calls[0].raw == request_body(**fields)
        assert cluster.metric("prefill_total", outcome="bypassed") == 1


async def test_without_prefill_servers_it_is_a_plain_balancer() -> None:
    async with RouterCluster(prefill=0, decode=3) as cluster:
        for _ in range(6):
            assert (await cluster.complete())[0] == 200
        assert [len(engine.calls) for engine in cluster.decode] == [2, 2, 2]
        assert cluster.metric("prefill_total", outcome="fallback") == 0


class LastOfEach:
    """A policy that shows what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[RequestFeatures, Snapshot]] = []

    def choose(self, request: RequestFeatures, snapshot: Snapshot) -> Placement:
        self.seen.append((request, snapshot))
        return Placement(prefill=snapshot.prefill[-1].url, decode=snapshot.decode[-1].url)


async def test_the_policy_decides_and_knows_the_load() -> None:
    policy = LastOfEach()
    async with RouterCluster(prefill=2, decode=2, policy=policy) as cluster:
        hold = asyncio.Event()
        cluster.prefill[1].behaviour = Behaviour(hold=hold)
        waiting = asyncio.create_task(cluster.complete(max_tokens=9))
        await cluster.prefill[1].wait_for_calls(1)
        second = asyncio.create_task(cluster.complete())
        await cluster.prefill[1].wait_for_calls(2)
        hold.set()
        await asyncio.gather(waiting, second)
        assert [len(engine.calls) for engine in (*cluster.prefill, *cluster.decode)] == [0, 2, 0, 2]
        features, _ = policy.seen[0]
        assert (features.model, features.max_output_tokens, features.wants_prefill) == ("fake", 9, True)
        assert [view.in_flight for view in policy.seen[1][1].prefill] == [0, 1]


async def test_models_of_all_decode_servers_are_merged() -> None:
    async with RouterCluster(prefill=1, decode=2) as cluster:
        cluster.decode[0].models = ("base", "adapter-a")
        cluster.decode[1].models = ("base", "adapter-b")
        status, body = await cluster.get("/v1/models")
        assert status == 200
        assert [model["id"] for model in json.loads(body)["data"]] == ["base", "adapter-a", "adapter-b"]
        await cluster.decode[0].stop()
        status, body = await cluster.get("/v1/models")
        assert [model["id"] for model in json.loads(body)["data"]] == ["base", "adapter-b"]
        await cluster.decode[1].stop()
        status, body = await cluster.get("/v1/models")
        assert (status, "no decode server can be reached" in json.loads(body)["error"]["message"]) == (
            503,
            True,
        )


@pytest.mark.parametrize(
    ("method", "path", "status", "hint"),
    [
        ("GET", "/", 404, "POST /v1/completions"),
        ("POST", "/v1/embeddings", 404, "POST /v1/chat/completions"),
        ("GET", "/v1/completions", 405, "takes POST"),
    ],
)
async def test_unknown_paths_say_what_there_is(method: str, path: str, status: int, hint: str) -> None:
    async with (
        RouterCluster() as cluster,
        cluster.client.request(method, cluster.router.url + path) as response,
    ):
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (status, status)
        assert hint in error["message"]


@pytest.mark.parametrize(
    ("raw", "status", "hint"),
    [
        (b"not json", 400, "not valid JSON"),
        (b'{"prompt":"x","kv_transfer_params":{"remote_host":"h"}}', 400, "set by the router"),
        (b'{"prompt":"' + b"x" * 5000 + b'"}', 413, "max_body_bytes"),
    ],
)
async def test_bad_bodies_are_refused_before_any_engine(raw: bytes, status: int, hint: str) -> None:
    async with RouterCluster(max_body_bytes=4096) as cluster:
        got, body = await cluster.complete(raw=raw)
        assert (got, hint in json.loads(body)["error"]["message"]) == (status, True)
        assert cluster.prefill[0].calls == cluster.decode[0].calls == []
        assert cluster.metric("requests_total", endpoint="/v1/completions", outcome="refused") == 1


async def test_an_overlong_request_id_is_refused() -> None:
    async with RouterCluster() as cluster:
        status, body = await cluster.complete(headers={"X-Request-Id": "i" * 300})
        assert (status, "X-Request-Id" in json.loads(body)["error"]["message"]) == (400, True)


async def test_cookies_of_one_answer_do_not_reach_the_next_request() -> None:
    async with RouterCluster(prefill=0) as cluster:
        cluster.decode[0].behaviour = Behaviour(headers={"Set-Cookie": "who=alice"})
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as other:
            url = cluster.router.url + "/v1/completions"
            async with other.post(url, data=request_body()) as response:
                assert response.headers["Set-Cookie"] == "who=alice"
            async with other.post(url, data=request_body()):
                pass
        assert "Cookie" not in cluster.decode[0].calls[1].headers

"""LMDeploy's servers: connected once, then one token of the prefill server, and its blocks for the decode
server.
"""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from kvferry.config.schema import RouterOptions
from kvferry.errors import ConfigError
from kvferry.router import RouterServer
from kvferry.router import links as links_module
from kvferry.testing.fake_lmdeploy import FIRST_TOKEN, FakeLMDeploy
from kvferry.testing.fake_openai import Behaviour
from kvferry.testing.router_cluster import LONGEST_WAIT_S, RouterCluster

INTRODUCTION = ["engine_info", "p2p_initialize", "p2p_connect"]


def pair(prefill: int = 1, decode: int = 1, **options: object) -> RouterCluster:
    return RouterCluster(prefill, decode, server=FakeLMDeploy, engine="lmdeploy", **options)


def lmdeploy(cluster: RouterCluster) -> tuple[list[FakeLMDeploy], list[FakeLMDeploy]]:
    return cast(list[FakeLMDeploy], cluster.prefill), cast(list[FakeLMDeploy], cluster.decode)


def paths(server: FakeLMDeploy) -> list[str]:
    return [path for path, _ in server.asked]


async def test_the_decode_server_is_told_where_the_blocks_are_and_the_first_token() -> None:
    async with pair() as cluster:
        (prefill,), (decode,) = lmdeploy(cluster)
        status, body = await cluster.complete(seed=7, stop=["x"], stream=False, max_completion_tokens=9)
        assert status == 200
        assert json.loads(body)["usage"]["completion_tokens"] == 4
        asked = prefill.calls[0].body
        assert (asked["max_tokens"], asked["max_completion_tokens"], asked["stream"]) == (1, 1, False)
        assert (asked["with_cache"], asked["preserve_cache"]) == (True, True)
        assert (asked["seed"], asked["stop"], asked["prompt"]) == (7, ["x"], "hello")
        (blocks,) = prefill.blocks
        assert decode.migrated == [
            {
                "protocol": 2,
                "remote_engine_id": prefill.url,
                "remote_session_id": -1,
                "remote_block_ids": list(blocks),
                "remote_token_id": FIRST_TOKEN,
            }
        ]
        assert decode.calls[0].body["max_completion_tokens"] == 9
        assert cluster.metric("prefill_total", outcome="handed_off") == 1


async def test_two_servers_are_connected_once_with_what_each_says_to_the_other() -> None:
    async with pair() as cluster:
        (prefill,), (decode,) = lmdeploy(cluster)
        headers = {"Authorization": "Bearer key"}
        answers = await asyncio.gather(*(cluster.complete(headers=headers) for _ in range(6)))
        assert [status for status, _ in answers] == [200] * 6
        for here, there in ((prefill, decode), (decode, prefill)):
            assert here.asked == [(path, "Bearer key") for path in INTRODUCTION]
            assert here.connected == {there.url: there.introduced[here.url]}
        assert len(decode.migrated) == 6


async def test_streams_and_chats_are_split_too() -> None:
    async with pair() as cluster:
        _, (decode,) = lmdeploy(cluster)
        status, body = await cluster.complete(
            path="/v1/chat/completions",
            prompt=None,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
        )
        assert (status, body.count(b"data: ")) == (200, 5)
        assert len(decode.migrated) == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_tokens": 1}, "max_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 1}, "max_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
    ],
)
async def test_what_cannot_be_split_goes_to_the_decode_server_alone(
    fields: dict[str, object], reason: str
) -> None:
    async with pair() as cluster:
        assert (await cluster.complete(**fields))[0] == 200
        assert cluster.prefill[0].calls == []
        assert cluster.metric("prefill_bypasses_total", reason=reason) == 1


@pytest.mark.parametrize("name", ["migration_request", "with_cache", "preserve_cache"])
async def test_clients_may_not_say_what_is_migrated(name: str) -> None:
    async with pair() as cluster:
        status, body = await cluster.complete(**{name: True})
        assert status == 400
        assert name in body.decode()


async def falls_back(cluster: RouterCluster, reason: str) -> None:
    """The decode server answers alone, and it is counted why."""
    assert (await cluster.complete())[0] == 200
    assert "migration_request" not in cluster.decode[-1].calls[-1].body
    assert cluster.metric("prefill_fallbacks_total", reason=reason) == 1


async def test_an_answer_that_ends_with_the_first_token_is_computed_by_the_decode_server() -> None:
    async with pair() as cluster:
        lmdeploy(cluster)[0][0].finish_reason = "stop"
        await falls_back(cluster, "ended")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(hand_off=False), "no_handoff"),
        (Behaviour(status=400), "rejected"),
        (Behaviour(status=500), "upstream_error"),
        (Behaviour(body=b"{}"), "malformed"),
        (Behaviour(drop=True), "lost"),
    ],
)
async def test_without_a_hand_off_the_decode_server_computes_the_prompt(
    behaviour: Behaviour, reason: str
) -> None:
    async with pair() as cluster:
        cluster.prefill[0].behaviour = behaviour
        await falls_back(cluster, reason)


@pytest.mark.parametrize("path", INTRODUCTION)
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_servers_that_cannot_be_connected_are_tried_again_later(
    path: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "RETRY_S", 1000.0)
    async with pair() as cluster:
        server = cast(FakeLMDeploy, getattr(cluster, role)[0])
        server.refuses = path
        await falls_back(cluster, "not_connected")
        asked = len(server.asked)
        assert (await cluster.complete())[0] == 200  # it has just failed
        assert len(server.asked) == asked
        monkeypatch.setattr(links_module, "RETRY_S", 0.0)
        server.refuses = ""
        assert (await cluster.complete())[0] == 200
        assert len(lmdeploy(cluster)[1][0].migrated) == 1


async def test_servers_of_different_tensor_parallelism_are_not_connected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pair() as cluster:
        lmdeploy(cluster)[0][0].tp_size = 2
        await falls_back(cluster, "not_connected")
    assert "need the same tensor parallelism (--tp)" in caplog.text


async def test_a_server_that_is_not_lmdeploys_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with RouterCluster(engine="lmdeploy") as cluster:
        await falls_back(cluster, "not_connected")
    assert "answered 404: is it LMDeploy, with --role Prefill or Decode?" in caplog.text


async def test_a_prefill_server_that_is_gone_is_replaced() -> None:
    async with pair(prefill=2, health_interval_s=60.0) as cluster:
        await cluster.prefill[0].stop()
        for _ in range(3):
            assert (await cluster.complete())[0] == 200
        assert len(lmdeploy(cluster)[1][0].migrated) == 3


async def test_a_decode_server_that_is_gone_is_replaced_by_one_that_computes_the_prompt() -> None:
    async with pair(decode=2, health_interval_s=60.0) as cluster:
        _, (first, second) = lmdeploy(cluster)
        for _ in range(2):
            assert (await cluster.complete())[0] == 200
        assert [len(first.migrated), len(second.migrated)] == [1, 1]
        await first.stop()
        assert (await cluster.complete())[0] == 200
        assert len(second.calls) == 2
        assert "migration_request" not in second.calls[-1].body


async def test_a_server_that_went_down_is_connected_anew() -> None:
    async with pair(health_interval_s=0.1) as cluster:
        (prefill,), (decode,) = lmdeploy(cluster)
        assert (await cluster.complete())[0] == 200
        await prefill.stop()
        async with asyncio.timeout(LONGEST_WAIT_S):
            while cluster.router.core.pool.prefill[0].usable:
                await asyncio.sleep(0.01)
        assert (await cluster.complete())[0] == 200
        await prefill.start()
        async with asyncio.timeout(LONGEST_WAIT_S):
            while not cluster.router.core.pool.prefill[0].usable:
                await asyncio.sleep(0.01)
        assert (await cluster.complete())[0] == 200
        assert paths(decode) == INTRODUCTION * 2
        assert len(decode.migrated) == 2


async def test_a_client_that_leaves_while_servers_are_connected_does_not_end_that() -> None:
    async with pair() as cluster:
        (prefill,), (decode,) = lmdeploy(cluster)
        prefill.opens = asyncio.Event()
        asked = asyncio.create_task(cluster.complete())
        async with asyncio.timeout(LONGEST_WAIT_S):
            while not prefill.asked:
                await asyncio.sleep(0.01)
            asked.cancel()
            while not cluster.metric("cancellations_total", phase="prefill"):
                await asyncio.sleep(0.01)
        prefill.opens.set()
        assert (await cluster.complete())[0] == 200
        assert paths(prefill) == paths(decode) == INTRODUCTION
        assert len(decode.migrated) == 1


async def test_a_server_that_hangs_is_waited_for_until_it_is_known_to_be_down() -> None:
    async with pair(health_interval_s=60.0) as cluster:
        (prefill,), (decode,) = lmdeploy(cluster)
        prefill.opens = asyncio.Event()
        asked = asyncio.create_task(cluster.complete())
        async with asyncio.timeout(LONGEST_WAIT_S):
            while not prefill.asked:
                await asyncio.sleep(0.01)
            cluster.router.core.pool.prefill[0].unreachable("no answer to a probe")
            assert (await asked)[0] == 200
        assert decode.migrated == []
        assert cluster.metric("prefill_fallbacks_total", reason="not_connected") == 1


async def test_a_wrong_key_keeps_nobody_else_from_connecting_servers() -> None:
    async with pair() as cluster:
        (prefill,), (decode,) = lmdeploy(cluster)
        prefill.key = "right"
        for key, count in (("wrong", 0), ("right", 1)):
            assert (await cluster.complete(headers={"Authorization": f"Bearer {key}"}))[0] == 200
            assert len(decode.migrated) == count


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bootstrap_ports": ("1",)}, "set router.engine to sglang"),
        ({"prefill_events": ("ipc:///x",)}, "leave it out with router.engine lmdeploy"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(options: dict[str, object], text: str) -> None:
    urls = {"prefill": ("http://127.0.0.1:1",), "decode": ("http://127.0.0.1:2",)}
    with pytest.raises(ConfigError, match=text):
        RouterServer(RouterOptions(**{"engine": "lmdeploy", **urls, **options}))  # type: ignore[arg-type]

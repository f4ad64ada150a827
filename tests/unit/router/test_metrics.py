"""The counts are exact: a workload with known ends, compared with `/metrics`."""

from __future__ import annotations

import asyncio
import contextlib

from prometheus_client.parser import text_string_to_metric_families

from kvferry.testing.fake_openai import Behaviour, token_events
from kvferry.testing.router_cluster import RouterCluster

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(cluster: RouterCluster) -> Samples:
    status, page = await cluster.get("/metrics")
    assert status == 200
    samples: Samples = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if not sample.name.endswith(("_created", "_bucket", "_sum")):
                samples[sample.name, frozenset(sample.labels.items())] = sample.value
    return samples


def total(samples: Samples, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (found, has), value in samples.items() if found == name and wanted <= has)


def assert_balance(samples: Samples) -> None:
    received = total(samples, "kvferry_router_requests_received_total")
    ended = total(samples, "kvferry_router_requests_total")
    assert received == ended + total(samples, "kvferry_router_requests_in_flight")


async def gone(cluster: RouterCluster, calls: int, decode: bool, **fields: object) -> None:
    task = asyncio.create_task(cluster.complete(**fields))
    engine = cluster.decode[0] if decode else cluster.prefill[0]
    call = await engine.wait_for_calls(calls)
    assert_balance(await scrape(cluster))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await asyncio.wait_for(call.ended.wait(), 60)


async def test_counts_equal_a_scripted_workload() -> None:
    async with RouterCluster(max_body_bytes=2048, health_interval_s=60) as cluster:
        p, d = cluster.prefill[0], cluster.decode[0]
        for _ in range(5):
            await cluster.complete()  # done, handed off
        for _ in range(3):
            await cluster.complete(path="/v1/chat/completions", stream=True)  # done, streamed: 4 tokens
        for _ in range(2):
            await cluster.complete(n=2)  # done, bypassed
        p.script = [Behaviour(status=500)]
        await cluster.complete()  # done, fallback
        d.script = [Behaviour(status=400)]
        await cluster.complete()  # failed: client_error, released
        d.script = [Behaviour(status=500)]
        await cluster.complete()  # failed: upstream_error, released
        d.script = [Behaviour(chunks=token_events(2)[:1])]
        await cluster.complete(stream=True)  # failed: truncated
        await cluster.complete(raw=b"{")  # refused
        await cluster.complete(raw=b" " * 4096)  # refused
        hold = asyncio.Event()
        p.script = [Behaviour(hold=hold)]
        await gone(cluster, len(p.calls) + 1, decode=False)  # cancelled: prefill
        d.script = [Behaviour(hold=hold)]
        await gone(cluster, len(d.calls) + 1, decode=True)  # cancelled: decode, released
        d.script = [Behaviour(hold=hold)]
        open_task = asyncio.create_task(cluster.complete())
        await d.wait_for_calls(len(d.calls) + 1)
        await asyncio.sleep(0.05)
        samples = await scrape(cluster)
        assert_balance(samples)

        def value(name: str, **labels: str) -> float:
            return total(samples, f"kvferry_router_{name}", **labels)

        assert value("requests_received_total") == 19
        assert value("requests_total", outcome="done", endpoint="/v1/completions") == 8
        assert value("requests_total", outcome="done", endpoint="/v1/chat/completions") == 3
        assert value("requests_total", outcome="failed") == 3
        assert value("requests_total", outcome="cancelled") == 2
        assert value("requests_total", outcome="refused") == 2
        assert value("requests_in_flight") == 1
        assert value("failures_total") == 3
        for reason in ("client_error", "upstream_error", "truncated"):
            assert value("failures_total", reason=reason) == 1
        assert value("cancellations_total", phase="prefill") == 1
        assert value("cancellations_total", phase="decode") == 1
        assert value("prefill_total", outcome="handed_off") == 13
        assert value("prefill_total", outcome="bypassed") == 2
        assert value("prefill_bypasses_total", reason="n") == 2
        assert value("prefill_total", outcome="fallback") == 1
        assert value("prefill_fallbacks_total", reason="upstream_error") == 1
        assert value("prefill_seconds_count") == 13
        assert value("first_byte_seconds_count", endpoint="/v1/chat/completions") == 3
        assert value("request_seconds_count") == 11
        assert value("releases_total", outcome="released") == 3
        assert value("backend_requests_total", role="prefill", outcome="done") == 13
        assert value("backend_requests_total", role="prefill", outcome="failed") == 1
        assert value("backend_requests_total", role="prefill", outcome="cancelled") == 1
        assert value("backend_requests_total", role="decode", outcome="failed") == 2
        assert value("backend_in_flight", role="decode") == 1
        assert value("backend_up") == 2
        assert len(cluster.leases.loaded) == 9
        assert len(p.calls) == 15
        hold.set()
        await open_task
        samples = await scrape(cluster)
        assert_balance(samples)
        assert total(samples, "kvferry_router_requests_in_flight") == 0


async def test_gaps_between_tokens_are_measured() -> None:
    async with RouterCluster() as cluster:
        cluster.decode[0].behaviour = Behaviour(gap_s=0.03)
        await cluster.complete(stream=True)
        labels = {"endpoint": "/v1/completions"}
        assert cluster.metric("inter_token_seconds_count", **labels) == 3
        assert 0.06 <= cluster.metric("inter_token_seconds_sum", **labels) <= 20
        assert cluster.metric("first_byte_seconds_sum", **labels) < 20


async def test_two_routers_in_one_process_do_not_share_counts() -> None:
    async with RouterCluster() as first, RouterCluster() as second:
        await first.complete()
        assert first.metric("requests_total", endpoint="/v1/completions", outcome="done") == 1
        assert second.metric("requests_total", endpoint="/v1/completions", outcome="done") == 0

"""What is no HTTP gets status 400 and a line in the log, without a traceback."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kvferry.config import http_logger
from kvferry.testing.router_cluster import LONGEST_WAIT_S, RouterCluster


async def answer_to(cluster: RouterCluster, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.router.port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), LONGEST_WAIT_S)
    writer.close()
    return answer


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\x01b\r\n\r\n",
        CHUNKED + b"zz\r\nabc\r\n",
    ],
    ids=["path", "header", "chunk"],
)
async def test_what_is_no_http_is_one_line_in_the_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    http_logger().addHandler(caplog.handler)
    try:
        async with RouterCluster(prefill=0) as cluster:
            answer = await answer_to(cluster, sent)
    finally:
        http_logger().removeHandler(caplog.handler)
    assert answer.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert len(answer) < 400
    ours = [record for record in caplog.records if record.name == "kvferry.http"]
    assert ours
    for record in ours:
        assert (record.levelno, record.exc_info) == (logging.WARNING, None)
        assert record.getMessage().startswith("Error handling request from 127.0.0.1: status 400, ")
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


def test_other_errors_keep_their_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    http_logger().addHandler(caplog.handler)
    try:
        http_logger().error("Error handling request from %s", "host", exc_info=ValueError("ours"))
    finally:
        http_logger().removeHandler(caplog.handler)
    assert all(record.exc_info is not None for record in caplog.records)
    assert "ValueError: ours" in caplog.text


async def test_a_request_id_that_is_no_text_is_replaced() -> None:
    body = b'{"prompt":"x","max_tokens":1}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Request-Id: \xff\xfe\r\n"
    async with RouterCluster() as cluster:
        answer = await answer_to(cluster, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        used = cluster.decode[0].calls[0].headers["X-Request-Id"]
        assert len(used) == 32
        assert f"X-Request-Id: {used}\r\n".encode() in answer


async def test_a_body_in_another_encoding_is_refused() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n"
    async with RouterCluster(prefill=0) as cluster:
        answer = await answer_to(cluster, head + b"abc")
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"BadRequestError" in answer
        assert cluster.metric("requests_total", endpoint="/v1/completions", outcome="refused") == 1

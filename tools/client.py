"""A small OpenAI-style client and a reader of Prometheus text, for demo and tests. Standard library only."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.progress import ToolError

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass
class Answer:
    """What a completion gave: the text, its token ids, and how long the first token took."""

    text: str
    token_ids: list[int]
    ttft_s: float
    seconds: float
    finish_reason: str | None
    raw: dict[str, Any] = field(default_factory=dict)


def _open(
    url: str, body: Mapping[str, Any] | None, timeout_s: float, headers: Mapping[str, str] | None = None
) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        return urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        raise ToolError(f"{url}: HTTP {error.code}: {error.read(2000).decode('utf-8', 'replace')}") from None
    except OSError as error:
        raise ToolError(f"{url}: {error}") from None


def get_json(url: str, timeout_s: float = 60.0) -> Any:
    """GET a JSON page."""
    with _open(url, None, timeout_s) as answer:
        return json.load(answer)


def get_text(url: str, timeout_s: float = 60.0) -> str:
    """GET a page as text."""
    with _open(url, None, timeout_s) as answer:
        return str(answer.read().decode())


def completion_body(prompt: object, max_tokens: int, **extra: Any) -> dict[str, Any]:
    """The body of a greedy completion that returns token ids; messages (a list of dicts) make it a chat."""
    chat = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)
    return {
        "model": "model",
        "messages" if chat else "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 0,
        "return_token_ids": True,
        **extra,
    }


def _path(body: Mapping[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def complete(url: str, body: Mapping[str, Any], timeout_s: float = 180.0) -> Answer:
    """One completion or chat, not streamed; ttft_s is then the whole time. Raises ToolError."""
    started = time.monotonic()
    with _open(url + _path(body), body, timeout_s) as response:
        answer = json.load(response)
    took = time.monotonic() - started
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "messages" in body else choice["text"]
    return Answer(text or "", choice.get("token_ids") or [], took, took, choice.get("finish_reason"), answer)


def _events(response: Any) -> Iterator[dict[str, Any]]:
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise ToolError(f"error in the stream: {event['error']}")
        yield event
    raise ToolError("the stream ended without [DONE]")


def stream(url: str, body: Mapping[str, Any], timeout_s: float = 180.0) -> Answer:
    """One streamed completion or chat, collected. Raises ToolError, also for a stream that breaks off."""
    started = time.monotonic()
    answer = Answer("", [], 0.0, 0.0, None)
    with _open(url + _path(body), {**body, "stream": True}, timeout_s) as response:
        for event in _events(response):
            for choice in event.get("choices", []):
                piece = choice.get("delta", {}).get("content") if "messages" in body else choice.get("text")
                if (piece or choice.get("token_ids")) and not answer.ttft_s:
                    answer.ttft_s = time.monotonic() - started
                answer.text += piece or ""
                answer.token_ids += choice.get("token_ids") or []
                answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    answer.seconds = time.monotonic() - started
    return answer


class Metrics:
    """The samples of one /metrics page."""

    def __init__(self, text: str) -> None:
        self.samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            match = _SAMPLE.match(line)
            if match:
                labels = dict(_LABEL.findall(match[2] or ""))
                self.samples.append((match[1], labels, float(match[3])))

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of `name` that carry these labels; 0 when there are none."""
        return sum(self.values(name, **labels))

    def values(self, name: str, **labels: str) -> list[float]:
        """All samples of `name` that carry these labels."""
        return [v for n, have, v in self.samples if n == name and labels.items() <= have.items()]

    def label_values(self, name: str, label: str) -> set[str]:
        """All values that `label` takes in the samples of `name`."""
        return {have[label] for n, have, _ in self.samples if n == name and label in have}

    def names(self, prefix: str) -> set[str]:
        """The sample names that begin with `prefix`."""
        return {name for name, _, _ in self.samples if name.startswith(prefix)}


def metrics(url: str) -> Metrics:
    """Read a server's /metrics page."""
    return Metrics(get_text(url + "/metrics"))

"""Addresses of engines, and when they are in use."""

from __future__ import annotations

import pytest

from kvferry.errors import ConfigError
from kvferry.router.instances import FAILURES_BEFORE_SUSPECT, Instance, Pool, Role, parse_base_url


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def instance(clock: Clock) -> Instance:
    return Instance(parse_base_url("http://127.0.0.1:8100"), Role.PREFILL, clock)


@pytest.mark.parametrize(
    ("text", "name", "endpoint"),
    [
        ("http://127.0.0.1:8100", "http://127.0.0.1:8100", "http://127.0.0.1:8100/v1/models"),
        ("http://127.0.0.1:8100/", "http://127.0.0.1:8100", "http://127.0.0.1:8100/v1/models"),
        ("http://[::1]:8100", "http://[::1]:8100", "http://[::1]:8100/v1/models"),
        ("https://host/base/", "https://host/base", "https://host/base/v1/models"),
        (" http://host:1 ", "http://host:1", "http://host:1/v1/models"),
    ],
)
def test_base_urls_are_understood(text: str, name: str, endpoint: str, clock: Clock) -> None:
    instance = Instance(parse_base_url(text), Role.DECODE, clock)
    assert instance.name == name
    assert str(instance.endpoint("/v1/models")) == endpoint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("127.0.0.1:8100", "not an http URL|not a URL"),
        ("localhost:8100", "not an http URL"),
        ("ftp://host", "not an http URL"),
        ("http://", "not an http URL|not a URL"),
        ("http://host:99999", "not a URL"),
        ("http://host:1/v1", "ends in /v1"),
        ("http://host:1/?a=b", "query"),
        ("", "not an http URL"),
        ("http://a..b:8100", "not a URL"),
    ],
)
def test_addresses_that_cannot_work_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_base_url(text)


def test_pool_needs_a_decode_server_and_no_duplicates(clock: Clock) -> None:
    with pytest.raises(ConfigError, match="--decode"):
        Pool(["http://a:1"], [], clock)
    with pytest.raises(ConfigError, match="twice"):
        Pool([], ["http://a:1", "http://a:1/"], clock)
    both = Pool(["http://a:1"], ["http://a:1"], clock)  # an engine may play both roles
    assert [one.role for one in both] == [Role.PREFILL, Role.DECODE]


def test_unreachable_is_down_at_once_and_back_with_the_first_good_probe(instance: Instance) -> None:
    assert instance.usable
    assert instance.unreachable("refused") is True
    assert instance.unreachable("refused") is False
    assert (instance.state, instance.last_error) == ("down", "refused")
    assert instance.probed(None) is True
    assert (instance.state, instance.last_error) == ("healthy", "")


def test_a_few_failures_in_a_row_make_it_suspect_for_a_growing_time(instance: Instance, clock: Clock) -> None:
    for _ in range(FAILURES_BEFORE_SUSPECT - 1):
        assert instance.failed("answered 500") is False
    assert instance.usable
    assert instance.failed("answered 500") is True
    assert instance.state == "suspect"
    assert instance.probed(None) is False  # it answers probes: that alone does not clear it
    assert not instance.usable
    clock.now_s += 1.0
    assert instance.usable
    assert instance.failed("answered 500") is True
    clock.now_s += 1.0
    assert not instance.usable
    clock.now_s += 1.0
    assert instance.usable
    for _ in range(20):
        instance.failed("answered 500")
    clock.now_s += 30.0
    assert instance.usable


def test_success_forgets_failures(instance: Instance) -> None:
    for _ in range(10):
        instance.failed("answered 500")
        instance.succeeded()
    assert instance.state == "healthy"


def test_a_restart_seen_by_the_prober_clears_everything(instance: Instance) -> None:
    for _ in range(5):
        instance.failed("answered 500")
    instance.probed("answered 503")
    assert instance.state == "down"
    instance.probed(None)
    assert instance.state == "healthy"

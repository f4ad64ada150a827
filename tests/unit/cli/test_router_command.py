from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from kvferry.cli import main
from kvferry.config import RouterOptions


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[RouterOptions]:
    """Replace the router; return the options that it was started with."""
    monkeypatch.chdir(tmp_path)
    calls: list[RouterOptions] = []
    stand_in = types.ModuleType("kvferry.router")
    stand_in.run = lambda router, transfer: calls.append(router)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvferry.router", stand_in)
    return calls


def test_flags_become_options(started: list[RouterOptions]) -> None:
    arguments = ["--prefill", "http://p1,http://p2", "--prefill", "http://p3", "--decode", "http://d"]
    assert (
        main(["router", *arguments, "--port", "0", "--request-timeout-s", "2m", "--max-body-bytes", "1MiB"])
        == 0
    )
    (options,) = started
    assert options.prefill == ("http://p1", "http://p2", "http://p3")
    assert options.decode == ("http://d",)
    assert (options.port, options.request_timeout_s, options.max_body_bytes) == (0, 120.0, 1 << 20)


def test_a_flag_beats_the_environment(started: list[RouterOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_ROUTER_PORT", "1234")
    monkeypatch.setenv("KVFERRY_ROUTER_HOST", "::1")
    assert main(["router", "--port", "4321"]) == 0
    assert (started[0].port, started[0].host) == (4321, "::1")


@pytest.mark.parametrize("value", ["", " ", ","])
@pytest.mark.parametrize("flag", ["--prefill", "--decode"])
def test_an_empty_list_of_servers_is_an_error(
    flag: str, value: str, started: list[RouterOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["router", flag, "http://one", flag, value]) == 2
    assert (
        f"error: {flag} is empty: give at least one URL, or leave the option out" in capsys.readouterr().err
    )
    assert started == []


@pytest.mark.parametrize(("name", "value"), [("cluster_secret", "short"), ("fault_plan", "no such fault")])
def test_transfer_settings_that_no_engine_takes_end_the_router_at_once(
    name: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"KVFERRY_TRANSFER_{name.upper()}", value)
    servers = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:1"]
    assert main(["router", "--port", "0", *servers]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: the transfer settings are invalid: {name}")


def test_a_wrong_flag_is_named_with_its_source(
    started: list[RouterOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["router", "--port", "70000"]) == 2
    assert "router.port: '70000' from command line is not allowed" in capsys.readouterr().err
    assert started == []


def test_help_says_what_lists_are_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["router", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--bootstrap-ports PORT[,PORT...]" in shown
    assert "--decode URL[,URL...]" in shown

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.config import HandoffOptions, RouterOptions, TransferOptions, load_config
from kvferry.errors import ConfigError


@pytest.fixture(autouse=True)
def _away_from_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_defaults_are_those_of_the_schema_and_say_so() -> None:
    config = load_config(environ={})
    assert config.transfer == TransferOptions()
    assert config.handoff == HandoffOptions()
    assert config.router == RouterOptions()
    assert set(config.sources.values()) == {"default"}


def test_nested_and_dotted_keys_may_be_mixed() -> None:
    config = load_config(
        {"transfer": {"tcp_streams": 4}, "transfer.checksum": True, "handoff.lease_s": 12}, environ={}
    )
    assert (config.transfer.tcp_streams, config.transfer.checksum, config.handoff.lease_s) == (4, True, 12.0)
    assert config.sources["transfer.tcp_streams"] == "argument"


def test_text_with_units_is_accepted_from_every_source(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[transfer]\nslice_bytes = "8MiB"\n[handoff]\nlease_s = "2m"\n')
    config = load_config(
        {"transfer.connect_timeout_s": "250ms"}, environ={"KVFERRY_ROUTER_MAX_BODY_BYTES": "1MB"}, file=file
    )
    assert config.transfer.slice_bytes == 8 << 20
    assert config.handoff.lease_s == 120.0
    assert config.transfer.connect_timeout_s == 0.25
    assert config.router.max_body_bytes == 10**6


def test_environment_text_becomes_the_type_of_the_field() -> None:
    config = load_config(
        environ={
            "KVFERRY_TRANSFER_ALLOW_FALLBACK": "false",
            "KVFERRY_TRANSFER_TCP_STREAMS": "3",
            "KVFERRY_ROUTER_DECODE": "http://a:1, http://b:2",
        }
    )
    assert config.transfer.allow_fallback is False
    assert config.transfer.tcp_streams == 3
    assert config.router.decode == ("http://a:1", "http://b:2")


@pytest.mark.parametrize(
    ("overrides", "environ", "words"),
    [
        ({"transfer": {"bnd": "x"}}, {}, ['"transfer.bnd"', 'did you mean "transfer.bind"?']),
        ({"lease": 3}, {}, ['"lease"', 'did you mean "handoff.lease_s"?']),
        ({"transfr": {"bind": "x"}}, {}, ['"transfr"', 'did you mean "transfer"?']),
        ({"zzzz": 1}, {}, ['"zzzz"', "kvferry config"]),
        ({}, {"KVFERRY_TRANSFER_TCP_STREAM": "1"}, ["did you mean KVFERRY_TRANSFER_TCP_STREAMS?"]),
        ({}, {"KVFERRY_LOG_COLOUR": "1"}, ["KVFERRY_LOG_COLOUR", "section log has no such key"]),
        ({"transfer": 5}, {}, ["transfer", "is a section"]),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known_one(
    overrides: dict[str, object], environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides, environ=environ)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "environ", "message"),
    [
        (
            {"transfer.tcp_streams": 0},
            {},
            "transfer.tcp_streams: 0 from argument is not allowed; expected integer from 1 to 64",
        ),
        (
            {"router.port": True},
            {},
            "router.port: True from argument is not allowed; expected integer from 0 to 65535",
        ),
        (
            {"transfer.checksum": "yes"},
            {},
            "transfer.checksum: 'yes' from argument is not allowed; expected true or false",
        ),
        (
            {},
            {"KVFERRY_LOG_LEVEL": "loud"},
            "log.level: 'loud' from environment KVFERRY_LOG_LEVEL is not allowed; "
            "expected one of debug, info, warning, error",
        ),
        (
            {"handoff.lease_s": float("nan")},
            {},
            "handoff.lease_s: nan from argument is not allowed; expected duration from 1s to 1d",
        ),
        (
            {"transfer.transports": ["shm", "rdma"]},
            {},
            "transfer.transports: ['shm', 'rdma'] from argument is not allowed; expected list of shm, tcp",
        ),
    ],
)
def test_wrong_values_name_key_value_source_and_what_was_expected(
    overrides: dict[str, object], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides, environ=environ)
    assert str(caught.value) == message


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"transfer.tcp_streams": -1, "nonsense": 1}, environ={"KVFERRY_HANDOFF_LEASE_S": "0"})
    assert all(word in str(caught.value) for word in ("tcp_streams", "nonsense", "handoff.lease_s"))


@pytest.mark.parametrize("key", ["protocol", "transfer.protocol"])
def test_protocol_is_an_alias_of_transports(key: str) -> None:
    config = load_config({key: "tcp"}, environ={})
    assert config.transfer.transports == ("tcp",)
    assert config.sources["transfer.transports"] == f"argument ({key}=tcp)"
    assert load_config(environ={"KVFERRY_PROTOCOL": "shm"}).transfer.transports == ("shm",)
    assert load_config({key: "auto"}, environ={}).transfer.transports == ("shm", "tcp")


def test_unknown_protocol_and_contradicting_alias_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of auto, shm, tcp"):
        load_config({"protocol": "rdma"}, environ={})
    with pytest.raises(ConfigError, match=r"transfer\.transports is set twice in argument"):
        load_config({"protocol": "tcp", "transfer": {"transports": ["shm"]}}, environ={})
    with pytest.raises(ConfigError, match="KVFERRY_TRANSFER_TRANSPORTS and environment KVFERRY_PROTOCOL"):
        load_config(environ={"KVFERRY_PROTOCOL": "tcp", "KVFERRY_TRANSFER_TRANSPORTS": "shm"})


def test_variables_injected_by_kubernetes_are_ignored() -> None:
    config = load_config(
        environ={
            "KVFERRY_ROUTER_PORT": "tcp://10.0.0.7:8000",
            "KVFERRY_ROUTER_SERVICE_HOST": "10.0.0.7",
            "KVFERRY_ROUTER_SERVICE_PORT_HTTP": "8000",
            "KVFERRY_ROUTER_PORT_8000_TCP_ADDR": "10.0.0.7",
        }
    )
    assert config.router.port == 8000
    assert config.sources["router.port"] == "default"


def test_files_are_found_in_the_documented_order(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text("[transfer]\ntcp_streams = 5\n")
    (tmp_path / "kvferry.toml").write_text("[transfer]\ntcp_streams = 6\n")
    assert load_config(environ={"KVFERRY_CONFIG": str(named)}).transfer.tcp_streams == 5
    assert load_config(environ={}).transfer.tcp_streams == 6
    assert load_config(environ={}, file=named).sources["transfer.tcp_streams"] == f"file {named}"


@pytest.mark.parametrize(
    ("content", "message"),
    [("[transfer\n", "is not valid TOML"), ("[transfer]\nbind = 3\n", r"transfer\.bind: 3 from file")],
)
def test_a_broken_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(environ={}, file=file)
    assert str(file) in str(caught.value)


def test_a_missing_named_file_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere\.toml \(named by KVFERRY_CONFIG\)"):
        load_config(environ={"KVFERRY_CONFIG": "/nowhere.toml"})


def test_an_oversized_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    file.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load_config(environ={}, file=file)


def test_importing_config_loads_no_heavy_module() -> None:
    code = (
        "import sys, kvferry.config\n"
        "heavy = {'numpy', 'aiohttp', 'asyncio', 'click', 'torch', 'prometheus_client', 'kvferry._native'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr

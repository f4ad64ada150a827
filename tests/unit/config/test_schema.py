from __future__ import annotations

import typing

import pytest

from kvferry.config import Field, TransferOptions, all_fields, check_options, load_config
from kvferry.config.fields import convert_value
from kvferry.errors import ConfigError


@pytest.mark.parametrize("field", all_fields(), ids=lambda field: field.key)
def test_each_field_is_documented_and_its_default_is_allowed(field: Field) -> None:
    assert len(field.doc) > 15
    assert field.doc.endswith(".")
    assert field.expected
    assert convert_value(field, field.default, text=False) == field.default
    if isinstance(field.default, float):
        assert field.unit in ("seconds", "share")
        assert field.name.endswith("_s") == (field.unit == "seconds")
    if field.name.endswith("_bytes"):
        assert field.unit == "bytes"


@pytest.mark.parametrize(
    "field",
    [field for field in all_fields() if field.name != "cluster_secret_file"],
    ids=lambda field: field.key,
)
def test_each_field_can_be_set_by_its_environment_variable(field: Field) -> None:
    text = field.show(field.default).strip('[]"').replace('"', "") if not field.secret else "s" * 16
    config = load_config(environ={field.environment: text})
    assert config.sources[field.key] == f"environment {field.environment}"
    if not field.secret:
        assert getattr(getattr(config, field.section), field.name) == field.default


def test_options_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TransferOptions().bind = "x"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["tcp_streams", "shm_lanes", "max_connections", "slice_bytes"])
def test_the_native_engine_takes_what_the_schema_allows(name: str) -> None:
    transfer = pytest.importorskip("kvferry.transfer", exc_type=ImportError)
    field = next(field for field in all_fields() if field.key == f"transfer.{name}")
    limits = typing.get_args(field.type)[1]
    for value in (limits.ge, limits.le):
        transfer.Engine(TransferOptions(**{name: value})).close()


def test_options_made_in_code_are_checked_against_the_same_limits() -> None:
    check_options(TransferOptions())
    check_options(TransferOptions(transports=["tcp"], link_timeout_s=5))  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        check_options(
            TransferOptions(slice_bytes=1, tcp_streams=65, transports=("tcp", "rdma"))  # type: ignore[arg-type]
        )
    assert str(caught.value) == (
        "transfer.transports: ('tcp', 'rdma') is not allowed; expected list of shm, tcp; "
        "transfer.tcp_streams: 65 is not allowed; expected integer from 1 to 64; "
        "transfer.slice_bytes: 1 is not allowed; expected size from 64KiB to 1GiB"
    )
    with pytest.raises(ConfigError) as caught:
        check_options(TransferOptions(cluster_secret=7))  # type: ignore[arg-type]
    assert "7" not in str(caught.value)


def test_an_engine_refuses_options_outside_of_the_limits() -> None:
    transfer = pytest.importorskip("kvferry.transfer", exc_type=ImportError)
    with pytest.raises(
        ConfigError, match=r"transfer\.slice_bytes: 1 is not allowed; expected size from 64KiB"
    ):
        transfer.Engine(TransferOptions(slice_bytes=1))


def test_a_limit_that_is_not_allowed_itself_is_said_so() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"store.watermark_high": "0"}, environ={}, overrides_are_text=True)
    assert "expected number above 0, 1 at most" in str(caught.value)

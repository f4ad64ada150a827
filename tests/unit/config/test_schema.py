from __future__ import annotations

import pytest

from kvferry.config import Field, TransferOptions, all_fields, check_options, load_config
from kvferry.config.fields import convert_value
from kvferry.config.schema import SECTIONS


@pytest.mark.parametrize("field", all_fields(), ids=lambda field: field.key)
def test_each_field_is_documented_and_its_default_is_allowed(field: Field) -> None:
    assert len(field.doc) > 15
    assert field.doc.endswith(".")
    assert field.expected
    assert convert_value(field, field.default, text=False) == field.default
    if isinstance(field.default, float):
        assert field.unit == "seconds"
        assert field.name.endswith("_s")
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


def test_sections_of_defaults_pass_the_check() -> None:
    for section in SECTIONS.values():
        check_options(section())


def test_options_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TransferOptions().bind = "x"  # type: ignore[misc]

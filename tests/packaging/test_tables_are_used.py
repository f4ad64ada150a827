"""No setting that nothing obeys, no metric that nothing sets (field report 9.2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvferry.config import Field, all_fields
from kvferry.metrics import METRICS, Metric

ROOT = Path(__file__).resolve().parents[2]


def code(*folders: str, without: str) -> str:
    """Return all shipped code below the folders, except below `without`."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    excluded = ROOT / without
    return "\n".join(
        path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in (".py", ".cc", ".h") and excluded not in path.parents
    )


PYTHON = code("core", "connectors", without="core/kvferry/config")
NATIVE = code("native/src", "native/bindings", without="native/tests")
METRIC_USERS = code("core", "connectors", without="core/kvferry/metrics")
LOADER = ("core/kvferry/config/loader.py", "core/kvferry/config/logs.py")
READ_BY_THE_LOADER = {"transfer.cluster_secret_file", "log.level"}


@pytest.mark.parametrize("field", all_fields(), ids=lambda field: field.key)
def test_each_setting_is_read_by_the_code_that_obeys_it(field: Field) -> None:
    if field.key in READ_BY_THE_LOADER:
        assert any(field.name in (ROOT / path).read_text(encoding="utf-8") for path in LOADER)
    elif field.section == "transfer" or f'"{field.name}"' in code("core/kvferry/store", without="docs"):
        native_name = field.name.removesuffix("_s")
        assert re.search(rf"\b{native_name}(_timeout)?\b", NATIVE), f"nothing native reads {field.key}"
    else:
        assert re.search(rf"\.{field.name}\b", PYTHON), f"nothing reads {field.key}"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_metric_is_set_somewhere(metric: Metric) -> None:
    short = metric.name.removeprefix(f"kvferry_{metric.group}_").removesuffix("_total")
    counted_natively = f'"{metric.name.removeprefix("kvferry_store_")}"' in NATIVE
    assert counted_natively or re.search(rf'"({metric.name}|{short})["|]', METRIC_USERS), (
        f"nothing sets {metric.name}"
    )


def test_each_metric_name_in_the_code_is_in_the_table() -> None:
    named = set(re.findall(r'"(kvferry_[a-z_]+_(?:total|bytes|seconds))["|]', METRIC_USERS))
    unknown = {name for name in named if not any(metric.name.startswith(name) for metric in METRICS)}
    assert not unknown

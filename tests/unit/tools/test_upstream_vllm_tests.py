from __future__ import annotations

from pathlib import Path

from tools import upstream_vllm_tests as tool

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_error_propagation" name="test_good"/>
<testcase classname="tests.unit.test_error_propagation" name="test_skipped"><skipped/></testcase>
{more}</testsuite></testsuites>"""


def table(folder: Path, more: str = "") -> tuple[str, list[str]]:
    report = folder / "report.xml"
    report.write_text(REPORT.format(more=more))
    return tool._table(report)


def test_the_table_counts_by_file(tmp_path: Path) -> None:
    text, failed = table(tmp_path)
    assert "| `test_error_propagation` | 1 | 0 | 1 |" in text
    assert "| `test_remote_prefill_lifecycle` | 0 | 0 | 0 |" in text
    assert failed == []


def test_what_fails_is_named(tmp_path: Path) -> None:
    more = '<testcase classname="x.test_remote_prefill_lifecycle" name="test_new"><failure/></testcase>'
    more += '<testcase classname="x.test_error_propagation" name="test_other"><error/></testcase>'
    text, failed = table(tmp_path, more)
    assert failed == ["test_new", "test_other"]
    assert "- `test_new` failed" in text
    assert "| `test_remote_prefill_lifecycle` | 0 | 1 | 0 |" in text

from __future__ import annotations

from pathlib import Path

from tools import upstream_vllm_tests as tool

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_error_propagation" name="test_good"/>
<testcase classname="tests.unit.test_error_propagation" name="test_skipped"><skipped/></testcase>
<testcase classname="tests.unit.test_remote_prefill_lifecycle" name="test_p_side_chunked_prefill_mamba">
<failure/></testcase>
{more}</testsuite></testsuites>"""


def table(folder: Path, more: str = "") -> tuple[str, list[str]]:
    report = folder / "report.xml"
    report.write_text(REPORT.format(more=more))
    return tool._table(report)


def test_the_table_counts_by_file_and_names_what_fails_as_it_should(tmp_path: Path) -> None:
    text, surprises = table(tmp_path)
    assert "| `test_error_propagation` | 1 | 0 | 1 |" in text
    assert "| `test_remote_prefill_lifecycle` | 0 | 1 | 0 |" in text
    assert "max_tokens" in text
    assert surprises == []


def test_another_failure_is_a_surprise(tmp_path: Path) -> None:
    more = '<testcase classname="x.test_error_propagation" name="test_new"><error/></testcase>'
    text, surprises = table(tmp_path, more)
    assert surprises == ["test_new"]
    assert "`test_new`: UNEXPECTED" in text

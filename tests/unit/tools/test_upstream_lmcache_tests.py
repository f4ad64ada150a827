from __future__ import annotations

from pathlib import Path

from tools import upstream
from tools import upstream_lmcache_tests as tool

REPORT = '<testsuites><testsuite><testcase name="test_good"/>{more}</testsuite></testsuites>'


def verdict(folder: Path, *failed: str) -> tuple[str, list[str]]:
    report = folder / "report.xml"
    more = "".join(f'<testcase name="{name}"><failure/></testcase>' for name in failed)
    report.write_text(REPORT.format(more=more))
    return upstream.verdict(report, tool.NOT_OURS, "of the mock itself")


def test_what_is_about_the_interface_counts(tmp_path: Path) -> None:
    assert verdict(tmp_path) == ("1 passed, 0 failed", [])
    text, wrong = verdict(tmp_path, "test_new", tool.NOT_OURS[0])
    assert wrong == ["test_new"]
    assert text == f"1 passed, 2 failed\n- test_new\n- {tool.NOT_OURS[0]} (of the mock itself)"

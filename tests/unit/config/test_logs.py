from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kvferry.config import LogOptions, apply_log_options

LOGGER = logging.getLogger("kvferry")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave the loggers as they were."""
    before = (LOGGER.level, LOGGER.propagate, list(LOGGER.handlers))
    yield
    LOGGER.setLevel(before[0])
    LOGGER.propagate = before[1]
    LOGGER.handlers[:] = before[2]


def test_a_process_of_ours_writes_to_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    LOGGER.handlers.clear()
    for _ in range(2):
        apply_log_options(LogOptions(level="info"), own_process=True)
    logging.getLogger("kvferry.router").info("listening")
    logging.getLogger("kvferry.router").debug("hidden")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("INFO    kvferry.router: listening")


def test_inside_an_engine_its_handlers_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    LOGGER.handlers.clear()
    engine = logging.NullHandler()
    logging.getLogger().addHandler(engine)
    try:
        apply_log_options(LogOptions(level="debug"), own_process=False)
    finally:
        logging.getLogger().removeHandler(engine)
    assert LOGGER.handlers == []
    assert logging.getLogger("kvferry.vllm").isEnabledFor(logging.DEBUG)
    assert capsys.readouterr().err == ""

"""The benchmark of pooling on vLLM: how pairs of turns become a figure, and why a connector did not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.vllm_bench.attempts import last_error
from benchmarks.vllm_bench.overhead import Costs, Work, spread
from benchmarks.vllm_bench.run import Run, token_bytes
from benchmarks.vllm_pooling import COMPARED, cost_rows, rows_of
from benchmarks.vllm_streaming import Found, Sample
from benchmarks.vllm_streaming import rows_of as vllm_streaming_rows


def test_a_load_on_the_machine_that_changes_slowly_does_not_count() -> None:
    """Turns between 1 s and 5 s, each pair's second one 1 % longer: the ratio is that, whatever the load."""
    pairs = [(seconds, 1.01 * seconds) for seconds in (1.0, 5.0, 2.0, 4.0)]
    found = spread(pairs)
    assert found.ratio == pytest.approx(1.01)
    assert (found.low, found.high) == pytest.approx((1.01, 1.01))


def test_one_disturbed_turn_does_not_decide() -> None:
    found = spread([(1.0, 1.01), (1.0, 1.01), (1.0, 9.0), (3.0, 1.0), (1.0, 1.01)])
    assert found.ratio == pytest.approx(1.01)


def test_costs_are_rows_with_the_ratio_of_the_pairs() -> None:
    costs = Costs(Work())
    for off in (1.0, 2.0, 8.0):
        costs.add((off, 2.0), (off * 1.05, 2.01))
    costs.shares = [0.019, 0.5, 0.01]
    cpu, wall, share = cost_rows("tiny", costs)
    assert cpu.ratio == pytest.approx(1.005)
    assert cpu.met is True
    assert wall.ratio == pytest.approx(1.05)
    assert wall.met is False
    assert (share.ours, share.met) == (pytest.approx(1.9), True)
    assert "tiny, 8 prompts of 250 + 32 tokens: wall time, 3 pairs" in wall.case


def test_what_was_not_measured_has_no_row(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"num_attention_heads": 8, "hidden_size": 256, "num_hidden_layers": 4})
    )
    run = Run(None, tmp_path, rounds=1, model=tmp_path)  # type: ignore[arg-type]
    assert not rows_of(run)
    run.seconds["ours"], run.seconds["own"] = [0.4, 0.2, 0.3], [0.1]
    (row,) = rows_of(run)
    assert (row.case, row.against, row.ratio) == ("pool in memory", "vLLM's own prefix cache", 2.0)


def test_every_target_is_a_comparison() -> None:
    assert {target for *_, target in COMPARED} == {"", "<= 1", "<= 1.03"}


def test_the_cache_of_a_token_is_keys_and_values_of_all_layers(tmp_path: Path) -> None:
    config = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "num_hidden_layers": 30}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert token_bytes(tmp_path) == 46080


def test_the_last_error_of_a_log_is_what_ended_an_engine() -> None:
    log = """engine single1 did not start:
Traceback (most recent call last):
  File "x.py", line 1, in f
Exception: CPU Offloading is currently only supported on GPUs
ENDED BY Exception: CPU Offloading is currently only supported on GPUs
Exception ignored in: <function f>
AttributeError: 'Worker' object has no attribute 'context'
"""
    assert last_error(log) == "Exception: CPU Offloading is currently only supported on GPUs"
    assert last_error("nothing") == "it ended without saying why"


def test_streaming_beside_pull_is_judged_by_what_is_exposed() -> None:
    found = Found([Sample(2.0, 5.0, 8.0, 0.0)] * 3, [Sample(0.1, 4.0, 8.0, 8.0)] * 3, [3.0])
    exposed, first = vllm_streaming_rows(found)
    assert (exposed.ratio, exposed.met) == (0.05, True)
    assert (first.ratio, first.met) == (0.8, True)

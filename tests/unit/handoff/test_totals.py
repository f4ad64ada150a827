from __future__ import annotations

from kvferry.errors import CancelledError, StaleError
from kvferry.handoff import LoadResult, totals_of
from kvferry.metrics import metrics_of


def test_results_and_counts_become_metrics():
    results = [
        LoadResult("a", None, 300, 0.1, "shm", "p", 200),
        LoadResult("b", None, 50, 0.1, "shm", "p"),
        LoadResult("c", StaleError("gone"), 0, 0.1, "", "p"),
        LoadResult("d", CancelledError("aborted"), 0, 0.1, "", "p"),
    ]
    counts = {
        "granted": 2,
        "expired": 1,
        "late_answers": 1,
        "late_notices": 2,
        "refused_wrong_role": 3,
        "streams_begun_anew": 4,
        "renewals": 9,
    }
    totals = totals_of(results, counts)
    assert totals == {
        "kvferry_handoff_loads_total|loaded": 2,
        "kvferry_handoff_loads_total|failed": 1,
        "kvferry_handoff_loads_total|cancelled": 1,
        "kvferry_handoff_loaded_bytes_total|shm": 350,
        "kvferry_handoff_early_bytes_total|": 200,
        "kvferry_handoff_load_failures_total|stale": 1,
        "kvferry_handoff_leases_granted_total|": 2,
        "kvferry_handoff_leases_ended_total|expired": 1,
        "kvferry_handoff_notices_ignored_total|late": 3,
        "kvferry_handoff_refused_requests_total|wrong_role": 3,
        "kvferry_handoff_streams_total|begun_anew": 4,
    }
    known = {metric.name for metric in metrics_of("handoff")}
    assert {key.partition("|")[0] for key in totals} <= known

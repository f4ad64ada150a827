"""What hand-offs count, in terms of the published metrics: `metric name|label value` -> how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from kvferry.handoff.consumer import LoadResult

_IGNORED = "kvferry_handoff_notices_ignored_total"
_COUNTS = {
    "granted": "kvferry_handoff_leases_granted_total|",
    **{
        reason: f"kvferry_handoff_leases_ended_total|{reason}"
        for reason in ("done", "rejected", "aborted", "expired")
    },
    "late_answers": f"{_IGNORED}|late",
    "malformed_messages": f"{_IGNORED}|malformed",
    **{f"{kind}_notices": f"{_IGNORED}|{kind}" for kind in ("late", "forged", "duplicate", "unknown")},
}
# Counts named by what follows one of these.
_FAMILIES = {
    "refused_": "kvferry_handoff_refused_requests_total",
    "streams_": "kvferry_handoff_streams_total",
}


def totals_of(results: Iterable[LoadResult], counts: Mapping[str, int]) -> Counter[str]:
    """Return what happened in a step of a worker or a scheduler; counts that no metric shows are left out."""
    totals: Counter[str] = Counter()
    for result in results:
        outcome = "cancelled" if result.cancelled else "failed" if result.error else "loaded"
        totals[f"kvferry_handoff_loads_total|{outcome}"] += 1
        if result.error is None:
            totals[f"kvferry_handoff_loaded_bytes_total|{result.transport}"] += result.bytes
            if result.early_bytes:
                totals["kvferry_handoff_early_bytes_total|"] += result.early_bytes
        elif not result.cancelled:
            totals[f"kvferry_handoff_load_failures_total|{result.error.code}"] += 1
    for name, count in counts.items():
        metric = _COUNTS.get(name)
        if metric is None:
            family, _, label = name.partition("_")
            shown = _FAMILIES.get(f"{family}_")
            metric = None if shown is None else f"{shown}|{label}"
        if metric is not None:
            totals[metric] += count
    return totals

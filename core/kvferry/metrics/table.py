"""Every metric of KVFerry as data: name, kind, labels, help.

A metric is added here together with the code that sets it; its reference page is made from this table.
Names follow Prometheus: counters end in `_total`, the unit (`_bytes`, `_seconds`) stands before that.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from kvferry.errors import NotFoundError
from kvferry.metrics.engines import ENGINE_METRICS
from kvferry.metrics.metric import SECONDS_BUCKETS, TOKEN_BUCKETS, TRANSFER_BUCKETS, Kind, Metric

METRICS: tuple[Metric, ...] = (
    # router: received = done + failed + cancelled + refused + in flight, at any moment
    Metric(
        "kvferry_router_requests_received_total",
        Kind.COUNTER,
        "Requests that reached the router.",
        ("endpoint",),
    ),
    Metric(
        "kvferry_router_requests_total",
        Kind.COUNTER,
        "Requests that ended, by outcome: done, failed, cancelled (client went away) or refused.",
        ("endpoint", "outcome"),
    ),
    Metric(
        "kvferry_router_requests_in_flight",
        Kind.GAUGE,
        "Requests received and not ended yet.",
        ("endpoint",),
    ),
    Metric(
        "kvferry_router_request_seconds",
        Kind.HISTOGRAM,
        "Time from a request's arrival to the end of its answer.",
        ("endpoint",),
        SECONDS_BUCKETS,
    ),
    Metric(
        "kvferry_router_first_byte_seconds",
        Kind.HISTOGRAM,
        "Time from a request's arrival to the first byte of its answer (streaming: time to first token).",
        ("endpoint",),
        SECONDS_BUCKETS,
    ),
    Metric(
        "kvferry_router_encode_total",
        Kind.COUNTER,
        "Images, clips and sounds sent to encode servers, by outcome: encoded, refused (the request is at "
        "fault), failed (no encode server did it in time; the server that computes the prompt does).",
        ("outcome",),
    ),
    Metric(
        "kvferry_router_prefill_seconds",
        Kind.HISTOGRAM,
        "Time of the prefill step of a request that had one.",
        (),
        SECONDS_BUCKETS,
    ),
    Metric(
        "kvferry_router_prefill_total",
        Kind.COUNTER,
        "Prefill steps by outcome: handed_off, streamed (the decode server read it while it was computed), "
        "fallback (the decode server computed the prompt), bypassed (the request cannot be split), failed "
        "(with SGLang, whose decode servers cannot compute a prompt: the request failed).",
        ("outcome",),
    ),
    Metric(
        "kvferry_router_prefill_fallbacks_total",
        Kind.COUNTER,
        "Requests served by a decode server alone although a prefill server is configured, by reason.",
        ("reason",),
    ),
    Metric(
        "kvferry_router_prefill_bypasses_total",
        Kind.COUNTER,
        "Requests that cannot be split into prefill and decode, by what they ask for.",
        ("reason",),
    ),
    Metric(
        "kvferry_router_inter_token_seconds",
        Kind.HISTOGRAM,
        "Time between two pieces of a streamed answer (time between tokens).",
        ("endpoint",),
        TOKEN_BUCKETS,
    ),
    Metric(
        "kvferry_router_failures_total",
        Kind.COUNTER,
        "Requests that failed, by reason.",
        ("reason",),
    ),
    Metric(
        "kvferry_router_cancellations_total",
        Kind.COUNTER,
        "Requests whose client went away, by phase: receiving (the body), prefill, decode (before the first "
        "byte), streaming.",
        ("phase",),
    ),
    Metric(
        "kvferry_router_decode_retries_total",
        Kind.COUNTER,
        "Requests sent to another decode server before any byte of an answer, by reason.",
        ("reason",),
    ),
    Metric(
        "kvferry_router_releases_total",
        Kind.COUNTER,
        "Prefill leases that no decode server took, given back by the router: reason (rejected, aborted) and "
        "outcome (released, not_held, failed, unsupported).",
        ("reason", "outcome"),
    ),
    Metric(
        "kvferry_router_backend_requests_total",
        Kind.COUNTER,
        "Requests sent to a server, by role (encode, prefill, decode) and outcome (done, failed, cancelled).",
        ("role", "backend", "outcome"),
    ),
    Metric(
        "kvferry_router_backend_in_flight",
        Kind.GAUGE,
        "Requests of this router open on a server.",
        ("role", "backend"),
    ),
    Metric(
        "kvferry_router_kv_events_total",
        Kind.COUNTER,
        "What the KV cache events of a prefill server came to: batches taken in, gaps in their numbers, "
        "replays asked for, malformed messages, disconnects.",
        ("backend", "event"),
    ),
    Metric(
        "kvferry_router_prefix_blocks",
        Kind.GAUGE,
        "KV blocks that a prefill server is known to hold.",
        ("backend",),
    ),
    Metric(
        "kvferry_router_prefix_complete",
        Kind.GAUGE,
        "1 if these are all that it holds, 0 if it may hold more.",
        ("backend",),
    ),
    Metric(
        "kvferry_router_prefix_lookups_total",
        Kind.COUNTER,
        "Prompts looked up in the prefix index: hit, miss, or unknown (no token ids).",
        ("outcome",),
    ),
    Metric(
        "kvferry_router_backend_up",
        Kind.GAUGE,
        "1 while requests are placed on a server, else 0.",
        ("role", "backend"),
    ),
    *ENGINE_METRICS,
    # meta: read from the membership at each scrape
    Metric(
        "kvferry_meta_members", Kind.GAUGE, "Members of the cluster as this node sees it, itself included."
    ),
    Metric("kvferry_meta_view", Kind.GAUGE, "Number of the view; it grows with every change of the members."),
    Metric(
        "kvferry_meta_store_up",
        Kind.GAUGE,
        "1 while the metadata store answers, else 0; the last view stays in force then.",
    ),
    Metric(
        "kvferry_meta_ignored_records_total",
        Kind.COUNTER,
        "Records of nodes in the metadata store that were not believed, by reason: forged, replayed, "
        "malformed, unknown_format, mismatched (other settings) or stale (not written anew).",
        ("reason",),
    ),
    # store: read from the node at each scrape
    Metric("kvferry_store_objects", Kind.GAUGE, "Objects held, by tier: dram or ssd.", ("tier",)),
    Metric("kvferry_store_dram_bytes", Kind.GAUGE, "Memory offered for objects."),
    Metric(
        "kvferry_store_dram_used_bytes",
        Kind.GAUGE,
        "Memory in use, objects being written and waiting for readers to leave included.",
    ),
    Metric("kvferry_store_dram_largest_free_bytes", Kind.GAUGE, "The largest free run of memory."),
    Metric("kvferry_store_pinned_objects", Kind.GAUGE, "Objects that are being read in place now."),
    Metric("kvferry_store_ssd_bytes", Kind.GAUGE, "Space that the SSD tier may take."),
    Metric("kvferry_store_ssd_used_bytes", Kind.GAUGE, "Space that it takes."),
    Metric("kvferry_store_directory_entries", Kind.GAUGE, "Entries in this node's share of the directory."),
    Metric("kvferry_store_clients", Kind.GAUGE, "Clients attached now."),
    Metric("kvferry_store_index_bytes", Kind.GAUGE, "Memory of the index that clients share."),
    Metric(
        "kvferry_store_metadata_bytes",
        Kind.GAUGE,
        "Memory used for knowing about objects, the index included.",
    ),
    Metric("kvferry_store_degraded", Kind.GAUGE, "Reasons why the node is not healthy; 0 if it is."),
    Metric(
        "kvferry_store_ssd_written_bytes_total", Kind.COUNTER, "Bytes written to SSD, compaction included."
    ),
    Metric("kvferry_store_ssd_stored_bytes_total", Kind.COUNTER, "Bytes of objects that were put on SSD."),
    Metric("kvferry_store_puts_total", Kind.COUNTER, "Objects that became visible by a client's put."),
    Metric("kvferry_store_put_bytes_total", Kind.COUNTER, "Bytes of these."),
    Metric("kvferry_store_puts_there_total", Kind.COUNTER, "Puts of bytes that were there already."),
    Metric(
        "kvferry_store_put_conflicts_total", Kind.COUNTER, "Puts of other bytes under a key that is there."
    ),
    Metric("kvferry_store_puts_failed_total", Kind.COUNTER, "Puts that failed for any other reason."),
    Metric(
        "kvferry_store_reads_total",
        Kind.COUNTER,
        "Objects sent to, or pinned for, clients and nodes that asked by message; reads in place send none.",
    ),
    Metric(
        "kvferry_store_reads_absent_total", Kind.COUNTER, "Objects asked for by message that were not here."
    ),
    Metric(
        "kvferry_store_lookups_total", Kind.COUNTER, "Ids looked up in this node's share of the directory."
    ),
    Metric(
        "kvferry_store_announced_total",
        Kind.COUNTER,
        "Objects told to the owners of their directory entries.",
    ),
    Metric(
        "kvferry_store_unannounced_total",
        Kind.COUNTER,
        "Objects made visible although their owner could not be told in time; it is told later.",
    ),
    Metric(
        "kvferry_store_dropped_conflicts_total",
        Kind.COUNTER,
        "Objects dropped here because the owner knew other bytes under their key.",
    ),
    Metric(
        "kvferry_store_dropped_removed_total",
        Kind.COUNTER,
        "Objects dropped here because they had been removed meanwhile.",
    ),
    Metric("kvferry_store_asked_everywhere_total", Kind.COUNTER, "Ids for which all members were asked."),
    Metric("kvferry_store_pulled_total", Kind.COUNTER, "Objects fetched from other nodes."),
    Metric("kvferry_store_pulled_bytes_total", Kind.COUNTER, "Bytes of these."),
    Metric("kvferry_store_pulls_failed_total", Kind.COUNTER, "Objects that could not be fetched."),
    Metric("kvferry_store_repaired_total", Kind.COUNTER, "Replicas made after the death of a node."),
    Metric(
        "kvferry_store_hot_replicas_total",
        Kind.COUNTER,
        "Replicas made because of many reads from another host.",
    ),
    Metric(
        "kvferry_store_moved_to_nodes_total",
        Kind.COUNTER,
        "Objects that other nodes took when they were to leave memory here.",
    ),
    Metric("kvferry_store_drained_total", Kind.COUNTER, "Objects moved away while the node was drained."),
    Metric("kvferry_store_removed_by_clients_total", Kind.COUNTER, "Objects removed by clients."),
    Metric("kvferry_store_suspicions_total", Kind.COUNTER, "Members that broke off or did not answer."),
    Metric("kvferry_store_stored_total", Kind.COUNTER, "Objects that became visible, fetched ones included."),
    Metric("kvferry_store_stored_bytes_total", Kind.COUNTER, "Bytes of these."),
    Metric(
        "kvferry_store_stored_there_total",
        Kind.COUNTER,
        "Reservations and commits of what was there already.",
    ),
    Metric("kvferry_store_stored_conflicts_total", Kind.COUNTER, "Commits of other bytes than were there."),
    Metric(
        "kvferry_store_reservations_aborted_total",
        Kind.COUNTER,
        "Reservations given up by whoever made them.",
    ),
    Metric(
        "kvferry_store_reservations_refused_total", Kind.COUNTER, "Reservations refused for want of room."
    ),
    Metric(
        "kvferry_store_reservation_leases_ended_total",
        Kind.COUNTER,
        "Reservations that were not committed in time.",
    ),
    Metric("kvferry_store_pins_total", Kind.COUNTER, "Objects pinned by message."),
    Metric(
        "kvferry_store_pins_of_absent_total", Kind.COUNTER, "Pins asked for of objects that were not here."
    ),
    Metric(
        "kvferry_store_pin_leases_ended_total",
        Kind.COUNTER,
        "Pins of readers on other hosts whose time was over.",
    ),
    Metric("kvferry_store_removed_total", Kind.COUNTER, "Objects removed."),
    Metric("kvferry_store_expired_total", Kind.COUNTER, "Objects whose time was over."),
    Metric("kvferry_store_evicted_total", Kind.COUNTER, "Objects that left the node for want of room."),
    Metric("kvferry_store_evicted_bytes_total", Kind.COUNTER, "Bytes of these."),
    Metric(
        "kvferry_store_evicted_in_put_total",
        Kind.COUNTER,
        "Of these, objects that left because a put had to wait for room.",
    ),
    Metric(
        "kvferry_store_kept_by_pins_total",
        Kind.COUNTER,
        "Objects whose memory stayed in use by readers after they were gone.",
    ),
    Metric("kvferry_store_clients_gone_total", Kind.COUNTER, "Client processes that ended without leaving."),
    Metric("kvferry_store_demoted_total", Kind.COUNTER, "Objects moved from memory to SSD."),
    Metric("kvferry_store_demoted_bytes_total", Kind.COUNTER, "Bytes of these."),
    Metric(
        "kvferry_store_demoted_remote_total", Kind.COUNTER, "Objects that another node took instead of SSD."
    ),
    Metric("kvferry_store_ssd_hits_total", Kind.COUNTER, "Objects brought back from SSD."),
    Metric("kvferry_store_ssd_hit_bytes_total", Kind.COUNTER, "Bytes of these."),
    Metric("kvferry_store_ssd_written_total", Kind.COUNTER, "Objects written to SSD."),
    Metric(
        "kvferry_store_ssd_skipped_total",
        Kind.COUNTER,
        "Objects evicted although they belonged on SSD, which was too slow, full or failing.",
    ),
    Metric("kvferry_store_ssd_evicted_total", Kind.COUNTER, "Objects given up on SSD for want of room."),
    Metric("kvferry_store_ssd_errors_total", Kind.COUNTER, "Failures of the SSD tier."),
    Metric(
        "kvferry_store_ssd_corrupt_total",
        Kind.COUNTER,
        "Objects dropped because the bytes on SSD were not those written.",
    ),
    Metric("kvferry_store_ssd_recovered_total", Kind.COUNTER, "Objects found on SSD at the start."),
    Metric(
        "kvferry_store_quick_puts_total", Kind.COUNTER, "Of the objects stored, those that took no message."
    ),
    Metric(
        "kvferry_store_quick_puts_refused_total",
        Kind.COUNTER,
        "Puts without a message that made no sense: a client's memory is broken.",
    ),
    Metric(
        "kvferry_store_malformed_messages_total",
        Kind.COUNTER,
        "Messages that did not have the form of the store's.",
    ),
    Metric(
        "kvferry_store_refused_requests_total",
        Kind.COUNTER,
        "Requests refused because too many were waiting.",
    ),
    # transfer: per peer; read from the engine at each scrape, so that moving data costs nothing for it
    Metric(
        "kvferry_transfer_moved_bytes_total",
        Kind.COUNTER,
        "Bytes moved by our own transfers, by direction: read or write.",
        ("peer", "transport", "op"),
    ),
    Metric(
        "kvferry_transfer_transfers_total",
        Kind.COUNTER,
        "Transfers that ended, good or bad.",
        ("peer", "transport"),
    ),
    Metric(
        "kvferry_transfer_pieces_total",
        Kind.COUNTER,
        "Pieces of transfers that ended, good or bad.",
        ("peer", "transport"),
    ),
    Metric(
        "kvferry_transfer_failed_pieces_total",
        Kind.COUNTER,
        "Pieces that were not moved, by the code of the error.",
        ("peer", "transport", "code"),
    ),
    Metric(
        "kvferry_transfer_retried_slices_total",
        Kind.COUNTER,
        "Slices moved again because their rail broke.",
        ("peer", "transport"),
    ),
    Metric(
        "kvferry_transfer_rail_failures_total",
        Kind.COUNTER,
        "How often a rail broke while it was in use.",
        ("peer", "transport"),
    ),
    Metric(
        "kvferry_transfer_rail_switches_total",
        Kind.COUNTER,
        "How often a peer's traffic moved to another transport or rail, or back.",
        ("peer",),
    ),
    Metric("kvferry_transfer_open_rails", Kind.GAUGE, "Rails open now.", ("peer", "transport")),
    Metric(
        "kvferry_transfer_unsettled",
        Kind.GAUGE,
        "Transfers submitted and not settled yet.",
        ("peer",),
    ),
    Metric("kvferry_transfer_queued_slices", Kind.GAUGE, "Slices that wait for a rail.", ("peer",)),
    Metric(
        "kvferry_transfer_latency_seconds",
        Kind.HISTOGRAM,
        "From submission to settlement, of transfers that did not fail.",
        ("peer", "transport"),
        TRANSFER_BUCKETS,
    ),
)


def metrics_of(group: str) -> tuple[Metric, ...]:
    """Return the metrics of one part, e.g. `router`."""
    return tuple(metric for metric in METRICS if metric.group == group)


def definition(name: str) -> Metric:
    """Return the definition of one metric. Raises NotFoundError with the nearest name."""
    for metric in METRICS:
        if metric.name == name:
            return metric
    close = difflib.get_close_matches(name, [metric.name for metric in METRICS], n=1)
    hint = f", did you mean {close[0]}?" if close else ""
    raise NotFoundError(f"no metric is called {name}{hint}")


_NAME = re.compile(r"kvferry_[a-z]+(_[a-z0-9]+)+")
_UNITS = {"ms", "us", "milliseconds", "minutes", "kb", "mb", "kib", "mib", "percent"}
_HISTOGRAM_UNITS = ("_seconds", "_bytes", "_blocks", "_tokens")
_RESERVED_SUFFIXES = ("_sum", "_count", "_bucket", "_created", "_info")


def lint(metrics: Iterable[Metric]) -> list[str]:
    """Return what is wrong with names, labels and help texts, one sentence each."""
    problems: list[str] = []
    seen: set[str] = set()
    for metric in metrics:
        problems.extend(f"{metric.name}: {problem}" for problem in _lint_one(metric))
        if metric.name in seen:
            problems.append(f"{metric.name}: defined twice")
        seen.add(metric.name)
    return problems


def _lint_one(metric: Metric) -> Iterator[str]:
    if not _NAME.fullmatch(metric.name):
        yield "name is not kvferry_<group>_<what>, in lower case"
    if (metric.kind is Kind.COUNTER) != metric.name.endswith("_total"):
        yield "counters, and only they, end in _total"
    if metric.kind is Kind.HISTOGRAM and not metric.name.endswith(_HISTOGRAM_UNITS):
        yield f"a histogram ends in its unit, one of {', '.join(_HISTOGRAM_UNITS)}"
    if (metric.kind is Kind.HISTOGRAM) != bool(metric.buckets):
        yield "histograms, and only they, have buckets"
    if list(metric.buckets) != sorted(set(metric.buckets)):
        yield "buckets are not in rising order"
    if metric.name.endswith(_RESERVED_SUFFIXES):
        yield "suffix is reserved by Prometheus"
    if bad := _UNITS & set(metric.name.split("_")):
        yield f"unit {'/'.join(sorted(bad))} is not a base unit (seconds, bytes)"
    if any(not re.fullmatch(r"[a-z_]+", label) or label in ("le", "quantile") for label in metric.labels):
        yield "a label is reserved or not lower case"
    if not metric.help.endswith("."):
        yield "help is not a sentence"


_INTRODUCTION = """\
# Metrics

<!-- Generated from core/kvferry/metrics by tools/generate_docs.py; do not edit. -->

"""


def to_markdown() -> str:
    """Return the reference page of all metrics."""
    parts = [_INTRODUCTION]
    for group in dict.fromkeys(metric.group for metric in METRICS):
        parts.append(f"## {group}\n\n| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n")
        for metric in metrics_of(group):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            parts.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |\n")
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"

"""Metrics that an engine's connector counts, shown with the engine's prefix, e.g. `vllm:kvferry_...`."""

from __future__ import annotations

from kvferry.metrics.metric import SECONDS_BUCKETS, Kind, Metric

ENGINE_METRICS: tuple[Metric, ...] = (
    # handoff: counted by an engine's connector, there with the engine's prefix, e.g. vllm:kvferry_...
    # leases granted = ended + those alive
    Metric(
        "kvferry_handoff_loads_total",
        Kind.COUNTER,
        "Loads of a prompt's KV cache that ended, by outcome: loaded, failed or cancelled.",
        ("outcome",),
    ),
    Metric(
        "kvferry_handoff_load_failures_total",
        Kind.COUNTER,
        "Failed loads, by the code of the error; their prompts were computed by the decode engine.",
        ("code",),
    ),
    Metric(
        "kvferry_handoff_loaded_bytes_total",
        Kind.COUNTER,
        "Bytes of KV cache loaded, by transport.",
        ("transport",),
    ),
    Metric(
        "kvferry_handoff_early_bytes_total",
        Kind.COUNTER,
        "Of the bytes loaded, those that were read while the prompt was still being computed.",
    ),
    Metric(
        "kvferry_handoff_streams_total",
        Kind.COUNTER,
        "Prompts read while they are computed, by what happened. Prefill engine: opened, followed, finished, "
        "aborted, cancelled (by the decode engine or the router), unopened (its request never came), untold "
        "(no room to tell), refused (too many at a time). Decode engine: watched, handed_over (finished, the "
        "rest is a load), begun_anew (the prefill engine preempted it), aborted_by_producer.",
        ("event",),
    ),
    Metric(
        "kvferry_handoff_load_seconds",
        Kind.HISTOGRAM,
        "Time of a successful load, from the order, or from the end of the prefill that it followed, to the "
        "confirmed lease, queueing included.",
        (),
        SECONDS_BUCKETS,
    ),
    Metric(
        "kvferry_handoff_leases_granted_total",
        Kind.COUNTER,
        "Leases that a prefill engine granted on finished prompts.",
    ),
    Metric(
        "kvferry_handoff_leases_ended_total",
        Kind.COUNTER,
        "Leases that ended, by reason: done (loaded), rejected, aborted or expired.",
        ("reason",),
    ),
    Metric(
        "kvferry_handoff_notices_ignored_total",
        Kind.COUNTER,
        "Control messages without effect, by kind: late, duplicate, unknown, forged, malformed.",
        ("kind",),
    ),
    Metric(
        "kvferry_handoff_refused_requests_total",
        Kind.COUNTER,
        "Requests whose kv_transfer_params could not be used, by reason; their prompts were computed here.",
        ("reason",),
    ),
    # pool: counted by an engine's connector, there with the engine's prefix, e.g. vllm:kvferry_...
    Metric(
        "kvferry_pool_lookups_total",
        Kind.COUNTER,
        "Questions for what the pool has of a prompt, by outcome: hit, miss, late (timed out) or failed.",
        ("outcome",),
    ),
    Metric(
        "kvferry_pool_loads_total",
        Kind.COUNTER,
        "Loads from the pool that ended, by outcome: loaded, failed or cancelled.",
        ("outcome",),
    ),
    Metric(
        "kvferry_pool_load_failures_total",
        Kind.COUNTER,
        "Failed loads, by the code of the error; what they were for was computed.",
        ("code",),
    ),
    Metric("kvferry_pool_loaded_bytes_total", Kind.COUNTER, "Bytes of KV cache loaded from the pool."),
    Metric(
        "kvferry_pool_load_seconds",
        Kind.HISTOGRAM,
        "Time of a successful load from the pool, queueing included.",
        (),
        SECONDS_BUCKETS,
    ),
    Metric(
        "kvferry_pool_saved_blocks_total",
        Kind.COUNTER,
        "Blocks that were to be saved, each rank's part by itself, by outcome: saved, existed, failed, or "
        "skipped (the engine could not hold them any longer).",
        ("outcome",),
    ),
    Metric("kvferry_pool_saved_bytes_total", Kind.COUNTER, "Bytes of KV cache saved to the pool."),
    Metric(
        "kvferry_pool_save_failures_total",
        Kind.COUNTER,
        "Failures of saves, by the code of the error.",
        ("code",),
    ),
    # encoder: outputs of multimodal encoders in the store, as an engine uses them
    Metric(
        "kvferry_encoder_loads_total",
        Kind.COUNTER,
        "Encoder outputs looked for in the store: loaded, absent, failed, or late (the encoder ran instead).",
        ("outcome",),
    ),
    Metric(
        "kvferry_encoder_loaded_bytes_total", Kind.COUNTER, "Bytes of encoder outputs taken from the store."
    ),
    Metric(
        "kvferry_encoder_saves_total",
        Kind.COUNTER,
        "Encoder outputs made here: stored, there already, failed, or dropped for want of staging memory.",
        ("outcome",),
    ),
    Metric("kvferry_encoder_saved_bytes_total", Kind.COUNTER, "Bytes of encoder outputs put into the store."),
)

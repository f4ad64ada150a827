"""What the engine counted, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from kvferry._native import PeerStats, TransportStats
from kvferry.metrics import MetricRegistry, Sample
from kvferry.transfer.engine import Engine


class TransferMetrics:
    """The metrics of one engine, read from it at each export. Thread-safe.

    A peer is named by its endpoint, and the engine itself, once it moved something to or from a file or
    within its memory, "self". A peer's series end when its connection does; a new connection starts from
    zero, which Prometheus takes for a restart.

        metrics = TransferMetrics(engine)
        page = metrics.registry.export()  # bytes, of metrics.registry.content_type
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.registry = MetricRegistry(())
        self.registry.read_from(self._samples)

    def _samples(self) -> Iterator[Sample]:
        names: set[str] = set()
        for peer in self._engine.peers():
            name = str(peer.endpoint)
            if name in names:
                name = f"{name}#{peer.handle}"  # a second connection to the same node
            names.add(name)
            yield from _of_peer(name, peer.stats())
        ourselves = self._engine.self_peer.stats()
        if ourselves.by_transport:
            yield from _of_peer("self", ourselves)


def _of_peer(peer: str, stats: PeerStats) -> Iterator[Sample]:
    for transport in stats.by_transport:
        yield from _of_transport(peer, transport)
    yield Sample("kvferry_transfer_rail_switches_total", (peer,), stats.rail_switches)
    yield Sample("kvferry_transfer_unsettled", (peer,), stats.unsettled_transfers)
    yield Sample("kvferry_transfer_queued_slices", (peer,), stats.queued_slices)


def _of_transport(peer: str, stats: TransportStats) -> Iterator[Sample]:
    labels = (peer, stats.transport)
    yield Sample("kvferry_transfer_moved_bytes_total", (*labels, "read"), stats.bytes_read)
    yield Sample("kvferry_transfer_moved_bytes_total", (*labels, "write"), stats.bytes_written)
    yield Sample("kvferry_transfer_transfers_total", labels, stats.transfers)
    yield Sample("kvferry_transfer_pieces_total", labels, stats.pieces)
    for code, count in stats.failed_pieces.items():
        yield Sample("kvferry_transfer_failed_pieces_total", (*labels, code), count)
    yield Sample("kvferry_transfer_retried_slices_total", labels, stats.retried_slices)
    yield Sample("kvferry_transfer_rail_failures_total", labels, stats.rail_failures)
    yield Sample("kvferry_transfer_open_rails", labels, stats.rails)
    yield Sample("kvferry_transfer_latency_seconds", labels, stats.latency_sum_s, tuple(stats.latency))

"""What all requests of one router share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from kvferry.config.schema import RouterOptions
from kvferry.router.health import Prober
from kvferry.router.instances import Instance, Pool, Role
from kvferry.router.metrics import RouterMetrics
from kvferry.router.release import Releaser
from kvferry.router.streaming import StreamBook
from kvferry.router.upstream import Upstream
from kvferry.scheduling import InstanceView, Placement, Policy, RequestFeatures, Snapshot

if TYPE_CHECKING:  # prefixes need the native module, which a router without KV events can do without
    from kvferry.router.links import Links
    from kvferry.router.prefixes import Prefixes


class Core(msgspec.Struct, kw_only=True):
    """The parts of one router. Belongs to one event loop."""

    options: RouterOptions
    pool: Pool
    policy: Policy
    upstream: Upstream
    metrics: RouterMetrics
    releaser: Releaser
    prober: Prober
    streams: StreamBook
    links: Links  # used where the engine is LMDeploy
    prefixes: Prefixes | None = None
    bootstrap_ports: dict[Instance, int] = {}  # of prefill servers, where the engine is SGLang

    def place(
        self, request: RequestFeatures, prefill: Sequence[Instance], decode: Sequence[Instance]
    ) -> tuple[Instance | None, Instance]:
        """Ask the policy, among these instances, and return its choice: (prefill or None, decode)."""
        pool = self.pool
        placement: Placement = self.policy.choose(
            request,
            Snapshot(
                prefill=_views(prefill),
                decode=_views(decode),
                prefill_turn=pool.prefill_turn,
                decode_turn=pool.decode_turn,
            ),
        )
        chosen = next((one for one in prefill if one.name == placement.prefill), None)
        if chosen is not None:
            pool.prefill_turn += 1
        if len(decode) > 1:
            pool.decode_turn += 1
        return chosen, next(one for one in decode if one.name == placement.decode)

    def usable_prefill(self, without: set[Instance]) -> list[Instance]:
        """Return the prefill instances that new requests may go to."""
        return [one for one in self.pool.prefill if one.usable and one not in without]

    def usable_decode(self, without: set[Instance]) -> list[Instance]:
        """Return the decode instances to choose from: the usable ones, else any that was not tried yet.

        With no decode instance there is no service at all, so one that seems to be down is worth a try: it
        may have come back since it was last asked.
        """
        left = [one for one in self.pool.decode if one not in without]
        return [one for one in left if one.usable] or left

    @contextmanager
    def use(self, instance: Instance) -> Iterator[Usage]:
        """Count a request as open on an instance while the block runs, and then its outcome."""
        usage = Usage()
        labels = (instance.role.value, instance.name)
        gauge = self.metrics.gauge("backend_in_flight", *labels)
        instance.in_flight += 1
        gauge.inc()
        try:
            yield usage
        finally:
            instance.in_flight -= 1
            gauge.dec()
            self.metrics.count("backend_requests", *labels, usage.outcome)

    def publish_health(self) -> None:
        """Bring the gauges that say which instances are in use up to date."""
        for instance in self.pool:
            gauge = self.metrics.gauge("backend_up", instance.role.value, instance.name)
            gauge.set(int(instance.usable))
        if self.prefixes is not None:
            self.prefixes.publish()


class Usage(msgspec.Struct):
    """How one request to one instance ended: done, failed, or, until either is known, cancelled."""

    outcome: str = "cancelled"


def _views(instances: Sequence[Instance]) -> tuple[InstanceView, ...]:
    return tuple(InstanceView(url=one.name, in_flight=one.in_flight) for one in instances)


def describe(instances: Sequence[Instance], role: Role) -> str:
    """Say of each instance why it is not in use, for an error message."""
    if not instances:
        return f"no {role.value} server is configured"
    return "; ".join(f"{one.name} ({one.last_error or one.state})" for one in instances)

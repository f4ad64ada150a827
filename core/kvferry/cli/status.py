"""`kvferry status` and `kvferry top`: what a node holds, once or live."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from kvferry.cli.using import TIMEOUT_S, admin_url, ask, node_flags
from kvferry.config import Config, approximate_size

_CLEAR = "\x1b[H\x1b[J"
_BAR = 40
_patience = click.option(
    "--timeout",
    "timeout_s",
    default=TIMEOUT_S,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Seconds that the node has for its answer.",
)


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--admin", metavar="URL", help="HTTP interface of a node [default: the one of this machine].")
@_patience
@node_flags
def status(*, config: Config, as_json: bool, admin: str | None, timeout_s: float) -> int:
    """Show what a node holds, the members of its cluster, and what is wrong. Exit code 1: it is degraded."""
    document = ask(config, admin_url(config, admin), "/status", timeout_s)
    click.echo(json.dumps(document, indent=2) if as_json else text_of(document))
    return 0 if document["status"] == "ok" else 1


@click.command("top")
@click.option(
    "--every", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Seconds between looks."
)
@click.option("--count", default=0, type=click.IntRange(0), help="Looks, then it ends; 0: until Ctrl-C.")
@click.option("--admin", metavar="URL", help="HTTP interface of a node [default: the one of this machine].")
@_patience
@node_flags
def top(*, config: Config, every: float, count: int, admin: str | None, timeout_s: float) -> None:
    """Show live what a node holds and does per second."""
    base = admin_url(config, admin)
    before, looked = ask(config, base, "/status", timeout_s), time.monotonic()
    shown = 0
    while True:
        time.sleep(every)
        document, now = ask(config, base, "/status", timeout_s), time.monotonic()
        rates = rates_of(before["stats"]["counters"], document["stats"]["counters"], now - looked)
        click.echo(f"{_CLEAR}{text_of(document)}\n\n{rates}")
        before, looked = document, now
        shown += 1
        if shown == count:
            return


def text_of(document: Mapping[str, Any]) -> str:
    """Return a status document as text."""
    stats = document["stats"]
    lines = [
        f"node {document['node_id']} at {document['endpoint']}, cluster {document['cluster']}: "
        f"{document['status']}",
        *(f"  ! {reason}" for reason in document["reasons"]),
        "",
        f"memory  {_bar(stats['dram_used'], stats['dram_bytes'])}  {stats['dram_objects']} objects",
    ]
    if stats["ssd_bytes"]:
        wear = stats["ssd_written"] / stats["ssd_stored"] if stats["ssd_stored"] else 0.0
        skipped = stats["counters"].get("ssd_skipped_total", 0)
        lines.append(
            f"ssd     {_bar(stats['ssd_used'], stats['ssd_bytes'])}  {stats['ssd_objects']} objects not in "
            f"memory, {wear:.2f} bytes written per byte stored"
            + (f", {skipped} objects forgotten that the disk did not take" if skipped else "")
        )
    lines += [
        f"clients {stats['clients']}, pinned objects {stats['pinned_objects']}, directory "
        f"{stats['directory_entries']} entries, metadata {approximate_size(stats['metadata_bytes'])}",
        "",
        f"members (view {document['view']}):",
    ]
    for member in document["members"]:
        here = " (this node)" if member["node_id"] == document["node_id"] else ""
        roles = f" {', '.join(member['roles'])}" if member["roles"] else ""
        size = approximate_size(member["dram_bytes"])
        lines.append(f"  {member['node_id'][:12]}  {member['endpoint']:<24} {size:>10}{roles}{here}")
    return "\n".join(lines)


def rates_of(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> str:
    """Return what was counted per second between two looks, a line each."""
    lines = []
    for name, count in sorted(after.items()):
        rate = (count - before.get(name, 0)) / seconds
        if rate > 0:
            shown = f"{approximate_size(int(rate))}/s" if name.endswith("bytes_total") else f"{rate:,.0f}/s"
            lines.append(f"  {name.removesuffix('_total'):<36} {shown:>14}")
    return "\n".join(["per second:", *lines]) if lines else "per second: nothing"


def _bar(used: int, size: int) -> str:
    share = min(used / size, 1.0) if size else 0.0
    full = round(share * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {share:6.1%} of {approximate_size(size)}"

"""What a node says of itself, as plain values for JSON and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvferry._native import NodeStats, ObjectInfo

if TYPE_CHECKING:
    from kvferry.node.process import NodeProcess

_FIELDS = (
    "objects", "dram_objects", "ssd_objects", "dram_bytes", "dram_used", "dram_largest_free",
    "pinned_objects", "ssd_bytes", "ssd_used", "ssd_written", "ssd_stored", "directory_entries", "clients",
    "index_bytes", "metadata_bytes",
)  # fmt: skip


def stats_row(stats: NodeStats) -> dict[str, Any]:
    """Return the numbers of a snapshot; sizes in bytes."""
    return {name: getattr(stats, name) for name in _FIELDS} | {"counters": dict(stats.counters)}


def object_row(info: ObjectInfo) -> dict[str, Any]:
    """Return one object; its key in hexadecimal, and as text if it is."""
    try:
        text = info.key.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "key": info.key.hex(),
        "text": text if text is not None and text.isprintable() else None,
        "bytes": info.nbytes,
        "tier": info.tier,
        "replicas": info.replicas,
        "tags": list(info.tags),
        "expires_in_s": info.expires_in_s,
    }


def status_document(node: NodeProcess) -> dict[str, Any]:
    """Return all that `kvferry status` shows."""
    problems = node.problems()
    view = node.view
    return {
        "node_id": node.node_id,
        "endpoint": str(node.endpoint),
        "cluster": node.config.cluster.name,
        "status": "degraded" if problems else "ok",
        "reasons": problems,
        "view": view.number,
        "members": [
            {
                "node_id": member.node_id,
                "endpoint": member.endpoint,
                "host_id": member.host_id,
                "dram_bytes": member.dram_bytes,
                "ssd_bytes": member.ssd_bytes,
                "roles": list(member.roles),
            }
            for member in view.members
        ],
        "stats": stats_row(node.stats()),
    }

"""`kvferry topology`: what this machine is made of, and what is near what."""

from __future__ import annotations

import json
import platform
from typing import NamedTuple

import click

from kvferry._native import Accelerator, Nic, NumaNode
from kvferry.config import approximate_size
from kvferry.transfer import Topology, topology


class Branch(NamedTuple):
    """A line of the tree with what hangs below it."""

    text: str
    below: list[Branch]


@click.command("topology")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--root",
    default="/",
    type=click.Path(file_okay=False),
    help="Where /sys and /proc are, for a copy of another machine's.",
)
def command(as_json: bool, root: str) -> None:
    """Show NUMA nodes, network interfaces and accelerators as a tree.

    Below each interface stands how near the accelerators are: on the same PCIe switch, the same root
    complex, the same NUMA node, or across nodes.
    """
    found = topology(root)
    click.echo(json.dumps(as_dict(found), indent=2) if as_json else "\n".join(tree(found, platform.node())))


def as_dict(found: Topology) -> dict[str, object]:
    """Return it for `--json`."""
    return {
        "numa_nodes": [
            {
                "id": node.id,
                "cpus": node.cpus,
                "memory_bytes": node.memory_bytes,
                "distances": node.distances,
            }
            for node in found.nodes
        ],
        "nics": [
            {
                "name": nic.name,
                "up": nic.up,
                "loopback": nic.loopback,
                "speed_mbit": nic.speed_mbit,
                "numa_node": nic.numa_node,
                "pci_address": nic.pci_address,
                "addresses": [f"{address.host}/{address.prefix_length}" for address in nic.addresses],
                "rdma_devices": nic.rdma_devices,
                "accelerators": {gpu.pci_address: nic.distance(gpu) for gpu in found.accelerators},
            }
            for nic in found.nics
        ],
        "accelerators": [
            {"vendor": gpu.vendor, "pci_address": gpu.pci_address, "numa_node": gpu.numa_node}
            for gpu in found.accelerators
        ],
        "engines": found.engines,
        "notes": found.notes,
    }


def tree(found: Topology, host: str) -> list[str]:
    """Return the lines that are printed."""
    return [host, *_lines(_branches(found)), *(f"note: {note}" for note in found.notes)]


def _branches(found: Topology) -> list[Branch]:
    branches = [Branch(_node_text(node), _devices(found, {node.id})) for node in found.nodes]
    elsewhere = {nic.numa_node for nic in found.nics} | {gpu.numa_node for gpu in found.accelerators}
    strays = _devices(found, elsewhere - {node.id for node in found.nodes})
    if strays:
        branches.append(Branch("no NUMA node", strays))
    if found.engines:
        branches.append(Branch("KVFerry engines", [Branch(engine, []) for engine in found.engines]))
    return branches


def _node_text(node: NumaNode) -> str:
    parts = [f"NUMA node {node.id}", f"CPUs {node.cpus or 'none'}"]
    if node.memory_bytes:
        parts.append(approximate_size(node.memory_bytes))
    if len(node.distances) > 1:
        parts.append("distances " + " ".join(map(str, node.distances)))
    return ", ".join(parts)


def _devices(found: Topology, nodes: set[int]) -> list[Branch]:
    nics = [
        Branch(_nic_text(nic), _near(nic, found.accelerators)) for nic in found.nics if nic.numa_node in nodes
    ]
    return nics + [
        Branch(f"{gpu.vendor} accelerator {gpu.pci_address}", [])
        for gpu in found.accelerators
        if gpu.numa_node in nodes
    ]


def _nic_text(nic: Nic) -> str:
    parts = [f"interface {nic.name}", "up" if nic.up else "down"]
    if nic.speed_mbit:
        parts.append(f"{nic.speed_mbit / 1000:g} Gbit/s")
    if nic.pci_address:
        parts.append(nic.pci_address)
    parts += [f"{address.host}/{address.prefix_length}" for address in nic.addresses]
    parts += [f"RDMA {device}" for device in nic.rdma_devices]
    return ", ".join(parts)


def _near(nic: Nic, accelerators: list[Accelerator]) -> list[Branch]:
    if not nic.pci_address:
        return []
    return [Branch(f"{gpu.pci_address}: {nic.distance(gpu)}", []) for gpu in accelerators]


def _lines(branches: list[Branch], indent: str = "") -> list[str]:
    lines: list[str] = []
    for number, branch in enumerate(branches, start=1):
        last = number == len(branches)
        lines.append(f"{indent}{'└─' if last else '├─'} {branch.text}")
        lines += _lines(branch.below, indent + ("   " if last else "│  "))
    return lines

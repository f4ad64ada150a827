"""Network interfaces, RDMA devices and accelerators."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.cli.host.model import Check, Level, read_int, read_text

if TYPE_CHECKING:
    from kvferry._native import DeviceDriver

Loader = Callable[[str], Any]  # ctypes.CDLL, or a stand-in in tests


def check_network(root: Path) -> Check:
    """Report the network interfaces that are up, with speed and NUMA node."""
    found = []
    for path in sorted((root / "sys/class/net").glob("*")):
        state = read_text(path / "operstate")
        if path.name == "lo" or state not in ("up", "unknown"):
            continue
        speed = read_int(path / "speed")
        found.append(
            {
                "name": path.name,
                "speed_mbit": speed if speed and speed > 0 else None,
                "mtu": read_int(path / "mtu"),
                "numa_node": read_int(path / "device/numa_node"),
            }
        )
    if not found:
        return Check("network", Level.NOTE, "no interface but loopback is up; peers must be on this host")
    words = ", ".join(f"{nic['name']} {_speed(nic['speed_mbit'])}, mtu {nic['mtu']}" for nic in found)
    return Check("network", Level.OK, words, "", {"interfaces": found})


def _speed(mbit: object) -> str:
    if not isinstance(mbit, int):
        return "(speed unknown)"
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def rdma_devices(root: Path) -> list[str]:
    """Return the names of the RDMA devices that the kernel shows."""
    return sorted(path.name for path in (root / "sys/class/infiniband").glob("*"))


def check_rdma(root: Path, load: Loader = ctypes.CDLL) -> Check:
    """Report RDMA devices and whether the library that drives them can be opened."""
    devices = rdma_devices(root)
    library = _try_load("libibverbs.so.1", load) is not None
    details = {"devices": devices, "libibverbs": library}
    if not devices:
        words = (
            "no device" + ("" if library else ", libibverbs not installed") + "; tcp is used between hosts"
        )
        return Check("RDMA", Level.NOTE, words, "", details)
    if not library:
        fix = "apt-get install libibverbs1 ibverbs-providers"
        return Check(
            "RDMA",
            Level.WARNING,
            f"{', '.join(devices)} found, but libibverbs is not installed",
            fix,
            details,
        )
    return Check(
        "RDMA", Level.NOTE, f"{', '.join(devices)} (this release uses tcp between hosts)", "", details
    )


def probe_drivers() -> Sequence[DeviceDriver]:
    """Load the drivers of accelerators that are installed. Raises ImportError without the native module."""
    from kvferry import _native

    return _native.device_drivers()


def check_accelerators(probe: Callable[[], Sequence[DeviceDriver]] = probe_drivers) -> Check:
    """Report accelerators whose memory can be registered, and why others cannot."""
    try:
        drivers = probe()
    except ImportError as error:
        return Check("accelerators", Level.NOTE, f"not looked for: {error}")
    details = {"drivers": {driver.kind: driver.text for driver in drivers}}
    usable = [driver.text for driver in drivers if driver.usable]
    if usable:
        return Check("accelerators", Level.OK, "; ".join(usable), "", details)
    reasons = "; ".join(driver.text for driver in drivers)
    return Check("accelerators", Level.NOTE, f"none, KV cache in host memory ({reasons})", "", details)


def _try_load(library: str, load: Loader) -> Any | None:
    try:
        return load(library)
    except OSError:
        return None

"""Network interfaces, RDMA devices and accelerators."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvferry.cli.host.model import Check, Level, read_int, read_text

Loader = Callable[[str], Any]  # ctypes.CDLL, or a stand-in in tests

# name, library to open, function that counts devices (its argument is int*), function to call first
_ACCELERATORS = (
    ("NVIDIA CUDA", "libcuda.so.1", "cuDeviceGetCount", "cuInit"),
    ("AMD ROCm", "libamdhip64.so", "hipGetDeviceCount", None),
    ("Huawei Ascend", "libascendcl.so", "aclrtGetDeviceCount", "aclInit"),
)


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


def check_accelerators(load: Loader = ctypes.CDLL) -> Check:
    """Report accelerators, by opening their run-time libraries."""
    found: list[dict[str, object]] = []
    for name, library, count_function, init_function in _ACCELERATORS:
        handle = _try_load(library, load)
        if handle is not None:
            count = _count_devices(handle, count_function, init_function)
            found.append({"name": name, "library": library, "devices": count})
    if not found:
        looked_for = ", ".join(library for _, library, _, _ in _ACCELERATORS)
        return Check("accelerators", Level.NOTE, f"none (looked for {looked_for}); KV cache in host memory")
    words = ", ".join(f"{item['name']}: {item['devices']} device(s)" for item in found)
    return Check("accelerators", Level.OK, words, "", {"found": found})


def _try_load(library: str, load: Loader) -> Any | None:
    try:
        return load(library)
    except OSError:
        return None


def _count_devices(handle: Any, count_function: str, init_function: str | None) -> int:
    """Return the number of devices, 0 if the library is there without a usable driver."""
    count = ctypes.c_int(0)
    try:
        if init_function == "cuInit":
            handle.cuInit(0)
        elif init_function is not None:
            getattr(handle, init_function)(None)
        failed = getattr(handle, count_function)(ctypes.byref(count))
    except AttributeError:
        return 0
    return 0 if failed else count.value

# Made by tools/stubs.py from the built module; do not edit.
"""
The native transfer engine. Use kvferry.transfer, which documents and checks; this module is private.
"""

from __future__ import annotations

import collections.abc
import typing

import typing_extensions

__all__: list[str] = [
    "BLOCKING",
    "Accelerator",
    "DeviceDriver",
    "Endpoint",
    "Engine",
    "EngineOptions",
    "LogQueue",
    "Message",
    "Nic",
    "NicAddress",
    "NumaNode",
    "Peer",
    "PeerStats",
    "Plan",
    "RegionInfo",
    "Topology",
    "Transfer",
    "buffer_address",
    "device_drivers",
    "discover_topology",
    "set_log_level",
]

class LogQueue:
    """
    Native log lines, bounded; to be drained by one thread.
    """
    def __init__(self, capacity: int) -> None: ...
    def close(self) -> None:
        """
        End the wait of drain(); later lines are dropped.
        """
    def drain(self, timeout_s: float) -> list[tuple[int, str]]:
        """
        Wait for lines; return them as (level, text), levels as in Python's logging.
        """
    def install(self) -> None:
        """
        Make this queue take every native log line of the process from now on.
        """
    def push(self, level: int, line: str) -> None: ...

class NumaNode:
    """
    A NUMA node: CPUs and memory that are near each other.
    """
    @property
    def cpus(self) -> str: ...
    @property
    def distances(self) -> list[int]: ...
    @property
    def id(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

class NicAddress:
    """
    An address of an interface, with its network's prefix length.
    """
    @property
    def host(self) -> str: ...
    @property
    def prefix_length(self) -> int: ...

class Accelerator:
    """
    A GPU or NPU, as the PCI bus shows it.
    """
    @property
    def numa_node(self) -> int: ...
    @property
    def pci_address(self) -> str: ...
    @property
    def vendor(self) -> str: ...

class Nic:
    """
    A network interface.
    """
    def distance(self, accelerator: Accelerator) -> str:
        """
        "same switch", "same root", "same node" or "cross".
        """
    @property
    def addresses(self) -> list[NicAddress]: ...
    @property
    def loopback(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def numa_node(self) -> int:
        """
        -1: none or unknown.
        """
    @property
    def pci_address(self) -> str: ...
    @property
    def rdma_devices(self) -> list[str]: ...
    @property
    def speed_mbit(self) -> int:
        """
        0: unknown.
        """
    @property
    def up(self) -> bool: ...

class Topology:
    """
    What a machine is made of. Immutable.
    """
    @property
    def accelerators(self) -> list[Accelerator]: ...
    @property
    def engines(self) -> list[str]:
        """
        Node ids of the engines that run in this network namespace.
        """
    @property
    def nics(self) -> list[Nic]: ...
    @property
    def nodes(self) -> list[NumaNode]: ...
    @property
    def notes(self) -> list[str]:
        """
        What could not be read.
        """

class DeviceDriver:
    """
    What is known of one vendor's accelerator driver.
    """
    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str:
        """
        Version and devices, or what is missing.
        """
    @property
    def usable(self) -> bool: ...

class Endpoint:
    """
    An address: IPv4, IPv6 with zone, unix path or abstract name. Immutable; parse and str are inverse. InvalidArgumentError for text that is no address.
    """
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __hash__(self) -> int: ...
    def __init__(self, address: str) -> None: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...
    def with_port(self, port: int) -> Endpoint:
        """
        The same host with another port.
        """
    @property
    def host(self) -> str: ...
    @property
    def is_loopback(self) -> bool: ...
    @property
    def is_wildcard(self) -> bool: ...
    @property
    def port(self) -> int: ...

class EngineOptions:
    """
    See kvferry.config.TransferOptions, which documents these.
    """

    advertise: str
    advise_huge_pages: bool
    allow_fallback: bool
    bind: str
    checksum: bool
    cluster_secret: str
    fault_plan: str
    metadata: bytes
    def __init__(self) -> None: ...
    @property
    def connect_timeout_s(self) -> float: ...
    @connect_timeout_s.setter
    def connect_timeout_s(self, arg1: float) -> None: ...
    @property
    def idle_probe_s(self) -> float: ...
    @idle_probe_s.setter
    def idle_probe_s(self, arg1: float) -> None: ...
    @property
    def max_connections(self) -> int: ...
    @max_connections.setter
    def max_connections(self, arg0: int) -> None: ...
    @property
    def shm_lanes(self) -> int: ...
    @shm_lanes.setter
    def shm_lanes(self, arg0: int) -> None: ...
    @property
    def slice_bytes(self) -> int: ...
    @slice_bytes.setter
    def slice_bytes(self, arg0: int) -> None: ...
    @property
    def tcp_streams(self) -> int: ...
    @tcp_streams.setter
    def tcp_streams(self, arg0: int) -> None: ...
    @property
    def transfer_timeout_s(self) -> float: ...
    @transfer_timeout_s.setter
    def transfer_timeout_s(self, arg1: float) -> None: ...
    @property
    def transports(self) -> list[str]: ...
    @transports.setter
    def transports(self, arg0: collections.abc.Sequence[str]) -> None: ...

class RegionInfo:
    """
    What a peer may know of a region of registered memory. Immutable.
    """
    def __repr__(self) -> str: ...
    @property
    def access(self) -> str:
        """
        What peers may do: 'r', 'w' or 'rw'.
        """
    @property
    def generation(self) -> int: ...
    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def length_bytes(self) -> int: ...
    @property
    def name(self) -> str: ...

class PeerStats:
    """
    What moved to and from one peer so far. A snapshot.
    """
    @property
    def bytes_read(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def failed_pieces(self) -> int: ...
    @property
    def pieces(self) -> int: ...
    @property
    def retried_slices(self) -> int: ...
    @property
    def transport(self) -> str: ...

class Peer:
    def close(self) -> None: ...
    def error(self) -> typing.Any: ...
    def refresh(self, timeout_s: float) -> None: ...
    def stats(self) -> PeerStats: ...
    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def handle(self) -> int: ...
    @property
    def metadata(self) -> bytes: ...
    @property
    def node_id(self) -> str: ...
    @property
    def regions(self) -> list[RegionInfo]: ...
    @property
    def same_host(self) -> bool: ...
    @property
    def transport_note(self) -> str: ...

class Plan:
    """
    Checked, sorted and merged pieces. Immutable; submit it as often as needed, from any thread.
    """
    @property
    def bytes(self) -> int: ...
    @property
    def op(self) -> str: ...
    @property
    def pieces(self) -> int:
        """
        Number of pieces as given.
        """
    @property
    def runs(self) -> int:
        """
        Number of contiguous runs after merging.
        """

class Transfer:
    def cancel(self) -> None: ...
    def error(self) -> typing.Any: ...
    def event_fd(self) -> int: ...
    def piece_errors(self) -> list[typing.Any]: ...
    def wait(self, timeout_s: float) -> bool: ...
    @property
    def seconds(self) -> float: ...
    @property
    def settled(self) -> bool: ...
    @property
    def transport(self) -> str: ...

class Message:
    """
    A control message from a peer. Immutable.
    """
    @property
    def body(self) -> bytes: ...
    @property
    def peer(self) -> int:
        """
        Handle of the peer: answer with Engine.send.
        """

class Engine:
    def __init__(self, options: EngineOptions) -> None: ...
    def allocate(self, length_bytes: int, name: str, access: str) -> tuple[RegionInfo, int]: ...
    def close(self) -> None: ...
    def connect(self, endpoint: Endpoint, expected: str, timeout_s: float) -> Peer: ...
    def counters(self) -> dict[str, int]: ...
    def next_message(self, timeout_s: float) -> Message | None: ...
    def peer(self, handle: int) -> Peer | None: ...
    def peers(self) -> list[Peer]: ...
    def prepare(self, peer: Peer, pieces: typing_extensions.Buffer, op: str) -> Plan: ...
    def register_address(self, address: int, length_bytes: int, name: str, access: str) -> RegionInfo: ...
    def send(self, peer: int, body: bytes, timeout_s: float) -> None: ...
    def set_metadata(self, metadata: bytes) -> None: ...
    def submit(self, plan: Plan, timeout_s: float | None, notify: bytes) -> Transfer: ...
    def unregister(self, id: int, generation: int, timeout_s: float) -> None: ...
    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def node_id(self) -> str: ...

def buffer_address(buffer: typing.Any) -> int:
    """
    Address of a contiguous buffer's first byte.
    """

def device_drivers() -> list[DeviceDriver]: ...
def discover_topology(root: str = "/") -> Topology: ...
def set_log_level(level: int) -> None:
    """
    Drop native log lines below this level (10 debug, 20 info, 30 warning, 40 error).
    """

BLOCKING: tuple[str, ...] = (
    "LogQueue.drain",
    "discover_topology",
    "device_drivers",
    "Peer.refresh",
    "Peer.close",
    "Transfer.wait",
    "Engine.__init__",
    "Engine.register_address",
    "Engine.allocate",
    "Engine.unregister",
    "Engine.connect",
    "Engine.prepare",
    "Engine.submit",
    "Engine.send",
    "Engine.next_message",
    "Engine.close",
)
__version__: str

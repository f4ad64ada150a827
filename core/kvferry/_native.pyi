# Made by tools/stubs.py from the built module; do not edit.
"""
The native transfer engine. Use kvferry.transfer, which documents and checks; this module is private.
"""

from __future__ import annotations

import collections.abc
import typing

import numpy
import numpy.typing
import typing_extensions

__all__: list[str] = [
    "BLOCKING",
    "Accelerator",
    "BlockList",
    "BufferRuns",
    "ChainIndex",
    "DeviceDriver",
    "Endpoint",
    "Engine",
    "EngineOptions",
    "IndexStats",
    "KeyChain",
    "KeySpace",
    "LogQueue",
    "Member",
    "Message",
    "Nic",
    "NicAddress",
    "Node",
    "NodeOptions",
    "NodeStats",
    "NumaNode",
    "ObjectInfo",
    "Peer",
    "PeerStats",
    "Plan",
    "PutArguments",
    "RailStats",
    "RegionInfo",
    "Store",
    "StoreOptions",
    "Stored",
    "Topology",
    "Transfer",
    "TransferStages",
    "TransportStats",
    "View",
    "ViewPiece",
    "buffer_address",
    "device_drivers",
    "discover_topology",
    "replay_trace",
    "set_log_level",
    "tls_library",
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
    io_uring: bool
    metadata: bytes
    numa_aware: bool
    tls: bool
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str
    def __init__(self) -> None: ...
    @property
    def connect_timeout_s(self) -> float: ...
    @connect_timeout_s.setter
    def connect_timeout_s(self, arg1: float) -> None: ...
    @property
    def device(self) -> list[str]: ...
    @device.setter
    def device(self, arg0: collections.abc.Sequence[str]) -> None: ...
    @property
    def idle_probe_s(self) -> float: ...
    @idle_probe_s.setter
    def idle_probe_s(self, arg1: float) -> None: ...
    @property
    def link_timeout_s(self) -> float: ...
    @link_timeout_s.setter
    def link_timeout_s(self, arg1: float) -> None: ...
    @property
    def max_connections(self) -> int: ...
    @max_connections.setter
    def max_connections(self, arg0: int) -> None: ...
    @property
    def preferred_numa_node(self) -> int: ...
    @preferred_numa_node.setter
    def preferred_numa_node(self, arg0: int) -> None: ...
    @property
    def rails(self) -> list[str]: ...
    @rails.setter
    def rails(self, arg0: collections.abc.Sequence[str]) -> None: ...
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

class TransportStats:
    """
    What moved to and from one peer by one transport so far. A snapshot. A transfer that several took part in counts for the one that ended it.
    """
    @property
    def bytes_read(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def failed_pieces(self) -> dict[str, int]:
        """
        By kind: the code of the error, e.g. peer_lost.
        """
    @property
    def latency(self) -> typing.Annotated[list[int], "FixedSize(32)"]:
        """
        Transfers that did not fail, by time from submission to settlement: entry 0 counts those under 1 us, entry i those of at least 2**(i-1) and less than 2**i us, the last all longer ones.
        """
    @property
    def latency_sum_s(self) -> float: ...
    @property
    def pieces(self) -> int:
        """
        Good and bad.
        """
    @property
    def rail_failures(self) -> int:
        """
        How often a rail broke in use.
        """
    @property
    def rails(self) -> int:
        """
        Open now.
        """
    @property
    def retried_slices(self) -> int: ...
    @property
    def transfers(self) -> int: ...
    @property
    def transport(self) -> str: ...

class RailStats:
    """
    One way to a peer: a transport, for tcp with a pair of addresses.
    """
    @property
    def bytes(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def lanes(self) -> int:
        """
        Connections or attachments open now.
        """
    @property
    def name(self) -> str: ...
    @property
    def reason(self) -> str:
        """
        Why it failed last; empty if it works.
        """
    @property
    def recoveries(self) -> int: ...
    @property
    def set_aside(self) -> bool:
        """
        It failed and has not worked since.
        """
    @property
    def transport(self) -> str: ...

class PeerStats:
    """
    What moved to and from one peer so far. A snapshot.
    """
    @property
    def by_transport(self) -> list[TransportStats]:
        """
        Those used so far.
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
    def queued_slices(self) -> int:
        """
        Parts of these that wait for a rail now.
        """
    @property
    def rail_switches(self) -> int:
        """
        How often traffic moved to another transport or rail, or back.
        """
    @property
    def rails(self) -> list[RailStats]:
        """
        Each way to the peer, best first.
        """
    @property
    def retried_slices(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def unsettled_transfers(self) -> int:
        """
        Now.
        """

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

class BlockList:
    """
    Equal blocks at even distances in one region, named by index: block i begins at offset + i * stride_bytes. Immutable.
    """
    def __init__(self, region: int, offset: int, block_bytes: int, stride_bytes: int, count: int) -> None: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def count(self) -> int:
        """
        How many blocks; at most 2**31.
        """
    @property
    def offset(self) -> int:
        """
        Of block 0, in bytes.
        """
    @property
    def region(self) -> int:
        """
        Region id.
        """
    @property
    def stride_bytes(self) -> int:
        """
        From one block's start to the next's.
        """

class TransferStages:
    """
    Where a settled transfer's time went, in seconds. All but wake_s add up to Transfer.seconds.
    """
    @property
    def move_s(self) -> float:
        """
        Until its last slice was done: posting, wire, copying.
        """
    @property
    def queue_s(self) -> float:
        """
        Until a rail took its first slice.
        """
    @property
    def settle_s(self) -> float:
        """
        Until it was settled: notify message, accounts.
        """
    @property
    def submit_s(self) -> float:
        """
        Checks and pins, until it was queued or taken by a rail.
        """
    @property
    def wake_s(self) -> float:
        """
        Until the first wait that slept had returned; 0 if none had to sleep.
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
    def stages(self) -> TransferStages: ...
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
    def execute(self, plan: Plan, timeout_s: float, notify: bytes, priority: str) -> Transfer: ...
    def file_note(self, id: int, generation: int) -> str: ...
    def next_message(self, timeout_s: float) -> Message | None: ...
    def open_file(
        self, path: bytes, length_bytes: int, create: bool, access: str, direct: str, sync: str
    ) -> RegionInfo: ...
    def peer(self, handle: int) -> Peer | None: ...
    def peers(self) -> list[Peer]: ...
    def prepare(self, peer: Peer, pieces: typing_extensions.Buffer, op: str) -> Plan: ...
    def prepare_blocks(
        self,
        peer: Peer,
        op: str,
        local: collections.abc.Sequence[BlockList],
        remote: collections.abc.Sequence[BlockList],
        local_index: typing_extensions.Buffer,
        remote_index: typing_extensions.Buffer,
    ) -> Plan: ...
    def register_address(
        self, address: int, length_bytes: int, name: str, access: str, kind: str
    ) -> RegionInfo: ...
    def self(self) -> Peer: ...
    def send(self, peer: int, body: bytes, timeout_s: float) -> None: ...
    def set_metadata(self, metadata: bytes) -> None: ...
    def submit(self, plan: Plan, timeout_s: float, notify: bytes, priority: str) -> Transfer: ...
    def unregister(self, id: int, generation: int, timeout_s: float) -> None: ...
    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def node_id(self) -> str: ...

class KeySpace:
    """
    See kvferry.index.KeySpace.
    """
    def __init__(
        self,
        fields: dict[str, typing.Any],
        extra: collections.abc.Sequence[tuple[bytes, bytes]],
        algorithm: str,
        secret: bytes,
    ) -> None: ...
    def keys(
        self,
        parent: bytes,
        tokens: typing.Any,
        spans: collections.abc.Sequence[tuple[int, int, bytes]],
        out: typing.Any,
    ) -> None: ...
    def of_engine_hashes(self, hashes: collections.abc.Sequence[bytes], out: typing.Any) -> None: ...
    @property
    def root(self) -> bytes: ...

class KeyChain:
    """
    See kvferry.index.KeyChain.
    """
    def __init__(self, space: KeySpace, parent: bytes, position: int) -> None: ...
    def extend(
        self, tokens: typing.Any, spans: collections.abc.Sequence[tuple[int, int, bytes]]
    ) -> bytes: ...
    @property
    def last(self) -> bytes: ...
    @property
    def pending_tokens(self) -> int: ...
    @property
    def position(self) -> int: ...

class Stored:
    """
    What became of one event.
    """
    @property
    def added(self) -> int:
        """
        Blocks that the instance did not hold.
        """
    @property
    def parent_held(self) -> bool:
        """
        False: the instance does not hold the parent, so an event got lost.
        """
    @property
    def refused(self) -> int:
        """
        Blocks beyond the index's limit.
        """
    @property
    def repeated(self) -> int:
        """
        Blocks that it held already.
        """

class IndexStats:
    """
    A snapshot of an index.
    """
    @property
    def blocks(self) -> int:
        """
        Distinct blocks.
        """
    @property
    def held(self) -> list[int]:
        """
        Blocks by instance.
        """
    @property
    def memory_bytes(self) -> int:
        """
        Of everything.
        """
    @property
    def repeats(self) -> int:
        """
        Pairs of block and instance with several references.
        """

class ChainIndex:
    """
    See kvferry.index.ChainIndex.
    """
    def __init__(self, max_instances: int, count_repeats: bool, max_blocks: int) -> None: ...
    def cleared(self, instance: int) -> int: ...
    def holders(self, key: bytes) -> list[int]: ...
    def match(self, keys: typing.Any, out: typing.Any, closed: bool) -> int: ...
    def match_prefix(self, keys: typing.Any, closed: bool) -> int: ...
    def references(self, instance: int, keys: typing.Any, out: typing.Any) -> None: ...
    def removed(self, instance: int, keys: typing.Any) -> int: ...
    def stats(self) -> IndexStats: ...
    def stored(self, instance: int, parent: bytes | None, keys: typing.Any) -> Stored: ...
    @property
    def max_instances(self) -> int: ...

class NodeOptions:
    """
    See kvferry.config.StoreOptions, which documents these.
    """

    cluster: str
    demote_to_remote: bool
    engine: EngineOptions
    ssd_directory: str
    def __init__(self) -> None: ...
    def set_policy(self, arg0: str) -> None: ...
    def set_ssd_policy(self, arg0: str) -> None: ...
    def set_ssd_sync(self, arg0: str) -> None: ...
    def set_ssd_write(self, arg0: str) -> None: ...
    @property
    def default_replicas(self) -> int: ...
    @default_replicas.setter
    def default_replicas(self, arg0: int) -> None: ...
    @property
    def dram_bytes(self) -> int: ...
    @dram_bytes.setter
    def dram_bytes(self, arg0: int) -> None: ...
    @property
    def hot_reads(self) -> int: ...
    @hot_reads.setter
    def hot_reads(self, arg0: int) -> None: ...
    @property
    def hot_window_s(self) -> float: ...
    @hot_window_s.setter
    def hot_window_s(self, arg1: float) -> None: ...
    @property
    def max_objects(self) -> int: ...
    @max_objects.setter
    def max_objects(self, arg0: int) -> None: ...
    @property
    def pin_lease_s(self) -> float: ...
    @pin_lease_s.setter
    def pin_lease_s(self, arg1: float) -> None: ...
    @property
    def reservation_lease_s(self) -> float: ...
    @reservation_lease_s.setter
    def reservation_lease_s(self, arg1: float) -> None: ...
    @property
    def ssd_bytes(self) -> int: ...
    @ssd_bytes.setter
    def ssd_bytes(self, arg0: int) -> None: ...
    @property
    def suspect_after_s(self) -> float: ...
    @suspect_after_s.setter
    def suspect_after_s(self, arg1: float) -> None: ...
    @property
    def watermark_high(self) -> float: ...
    @watermark_high.setter
    def watermark_high(self, arg0: float) -> None: ...
    @property
    def watermark_low(self) -> float: ...
    @watermark_low.setter
    def watermark_low(self, arg0: float) -> None: ...

class Member:
    """
    A node as the cluster's membership has it. Immutable.
    """
    def __init__(self, node_id: str, endpoint: Endpoint, host: str, dram_bytes: int) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def dram_bytes(self) -> int: ...
    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def host(self) -> str: ...
    @property
    def node_id(self) -> str: ...

class NodeStats:
    """
    What a node holds and has done. A snapshot; sizes in bytes.
    """
    @property
    def clients(self) -> int: ...
    @property
    def counters(self) -> dict[str, int]: ...
    @property
    def degraded(self) -> list[str]: ...
    @property
    def directory_entries(self) -> int: ...
    @property
    def dram_bytes(self) -> int: ...
    @property
    def dram_largest_free(self) -> int: ...
    @property
    def dram_objects(self) -> int: ...
    @property
    def dram_used(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def metadata_bytes(self) -> int: ...
    @property
    def objects(self) -> int: ...
    @property
    def pinned_objects(self) -> int: ...
    @property
    def ssd_bytes(self) -> int: ...
    @property
    def ssd_objects(self) -> int: ...
    @property
    def ssd_stored(self) -> int: ...
    @property
    def ssd_used(self) -> int: ...
    @property
    def ssd_written(self) -> int: ...

class Node:
    def __init__(self, options: NodeOptions) -> None: ...
    def close(self) -> None: ...
    def drain(self, timeout_s: float) -> int: ...
    def error(self) -> typing.Any: ...
    def on_heard(self, callback: collections.abc.Callable[[str], None]) -> None: ...
    def on_suspect(self, callback: collections.abc.Callable[[str], None]) -> None: ...
    def set_members(self, view: int, members: collections.abc.Sequence[Member]) -> None: ...
    def stats(self) -> NodeStats: ...
    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def node_id(self) -> str: ...

class BufferRuns:
    """
    Where the bytes of plain buffers lie; holds the buffers.
    """
    @staticmethod
    def find(values: collections.abc.Sequence[typing.Any], writable: bool) -> BufferRuns | None:
        """
        None if a value is not a plain buffer or a list or tuple of such.
        """
    @property
    def addresses(self) -> bytes:
        """
        Of uint64, one for each run.
        """
    @property
    def counts(self) -> bytes:
        """
        Of int64: how many runs each value has.
        """
    @property
    def lengths(self) -> bytes:
        """
        Of uint64, alike.
        """

class ViewPiece:
    """
    A run of an object's bytes, read in place.
    """

class View:
    """
    A pinned object; ends with its last ViewPiece.
    """
    def pieces(self) -> list[ViewPiece]: ...
    @property
    def nbytes(self) -> int: ...

class ObjectInfo:
    """
    What is known of a stored object. Immutable.
    """
    @property
    def expires_in_s(self) -> float | None: ...
    @property
    def key(self) -> bytes: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def replicas(self) -> int:
        """
        Wanted.
        """
    @property
    def tags(self) -> list[str]: ...
    @property
    def tenant(self) -> str: ...
    @property
    def tier(self) -> str: ...

class StoreOptions:
    cluster: str
    engine: EngineOptions
    tenant: str
    verify: bool
    def __init__(self) -> None: ...
    def find_node(self, callback: collections.abc.Callable[[], Endpoint | None]) -> None: ...
    @property
    def timeout_s(self) -> float: ...
    @timeout_s.setter
    def timeout_s(self, arg1: float) -> None: ...

class PutArguments:
    chain: bool
    def __init__(self) -> None: ...
    @property
    def replicas(self) -> int: ...
    @replicas.setter
    def replicas(self, arg0: int) -> None: ...
    @property
    def tags(self) -> list[str]: ...
    @tags.setter
    def tags(self, arg0: collections.abc.Sequence[str]) -> None: ...
    @property
    def timeout_s(self) -> float: ...
    @timeout_s.setter
    def timeout_s(self, arg0: float) -> None: ...
    @property
    def ttl_s(self) -> float | None: ...
    @ttl_s.setter
    def ttl_s(self, arg0: float | None) -> None: ...

class Store:
    @staticmethod
    def embedded(node: Node, options: StoreOptions) -> Store: ...
    @staticmethod
    def open(node: Endpoint, options: StoreOptions) -> Store: ...
    def close(self) -> None: ...
    def counters(self) -> dict[str, int]: ...
    def error(self) -> typing.Any: ...
    def exists(self, keys: typing.Any, timeout_s: float) -> bytes: ...
    def get_into(
        self,
        keys: typing.Any,
        addresses: typing_extensions.Buffer,
        lengths: typing_extensions.Buffer,
        counts: typing_extensions.Buffer,
        timeout_s: float,
        verify: bool | None,
    ) -> list[typing.Any]: ...
    def get_into_buffers(
        self, keys: typing.Any, buffers: BufferRuns, timeout_s: float, verify: bool | None
    ) -> list[typing.Any]: ...
    def get_range(
        self, key: bytes, offset: int, address: int, length_bytes: int, timeout_s: float
    ) -> int: ...
    def in_place(self) -> bool: ...
    def list_objects(self, prefix: bytes, after: bytes, limit: int, timeout_s: float) -> list[ObjectInfo]: ...
    def match_prefix(self, keys: typing.Any, timeout_s: float) -> int: ...
    def members(self) -> list[Member]: ...
    def node_stats(self, timeout_s: float) -> NodeStats: ...
    def prefetch(self, keys: typing.Any, within_s: float) -> None: ...
    def put(
        self,
        keys: typing.Any,
        addresses: typing_extensions.Buffer,
        lengths: typing_extensions.Buffer,
        counts: typing_extensions.Buffer,
        arguments: PutArguments,
        parents: typing.Any | None,
    ) -> list[typing.Any]: ...
    def put_buffers(
        self, keys: typing.Any, buffers: BufferRuns, arguments: PutArguments, parents: typing.Any | None
    ) -> list[typing.Any]: ...
    def register_memory(self, address: int, length_bytes: int) -> None: ...
    def remove(self, keys: typing.Any, timeout_s: float) -> list[typing.Any]: ...
    def remove_tag(self, tag: str, timeout_s: float) -> int: ...
    def sizes(self, keys: typing.Any, timeout_s: float) -> list[typing.Any]: ...
    def unregister_memory(self, address: int) -> None: ...
    def view(self, key: bytes, timeout_s: float) -> View: ...

def buffer_address(buffer: typing.Any) -> int:
    """
    Address of a contiguous buffer's first byte.
    """

def device_drivers() -> list[DeviceDriver]: ...
def discover_topology(root: str = "/") -> Topology: ...
def replay_trace(
    ids: typing.Annotated[numpy.typing.ArrayLike, numpy.uint64],
    offsets: typing.Annotated[numpy.typing.ArrayLike, numpy.uint64],
    block_bytes: typing.Annotated[numpy.typing.ArrayLike, numpy.uint64],
    capacity_bytes: int,
    policy: str,
    chained: bool = True,
) -> tuple[numpy.typing.NDArray[numpy.uint64], int, int]:
    """
    Hits of each request, bytes that the policy took and objects that it knew, at most, after requests for chains of blocks on an empty cache; not `chained`: the policy is not told that they are chains. See native/src/store/policy/replay.h.
    """

def set_log_level(level: int) -> None:
    """
    Drop native log lines below this level (10 debug, 20 info, 30 warning, 40 error).
    """

def tls_library() -> str:
    """
    Version of the library used for TLS, or an error.
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
    "Engine.open_file",
    "Engine.unregister",
    "Engine.connect",
    "Engine.prepare",
    "Engine.prepare_blocks",
    "Engine.submit",
    "Engine.execute",
    "Engine.send",
    "Engine.next_message",
    "Engine.close",
    "KeySpace.keys",
    "KeySpace.of_engine_hashes",
    "KeyChain.extend",
    "ChainIndex.cleared",
    "ChainIndex.stats",
    "ChainIndex.stored",
    "ChainIndex.removed",
    "ChainIndex.match_prefix",
    "ChainIndex.match",
    "ChainIndex.references",
    "ChainIndex.holders",
    "replay_trace",
    "Node.__init__",
    "Node.set_members",
    "Node.stats",
    "Node.drain",
    "Node.close",
    "Store.error",
    "Store.put",
    "Store.put_buffers",
    "Store.get_into",
    "Store.get_into_buffers",
    "Store.get_range",
    "Store.sizes",
    "Store.exists",
    "Store.match_prefix",
    "Store.view",
    "Store.remove",
    "Store.prefetch",
    "Store.list_objects",
    "Store.__init__",
    "Store.open",
    "Store.embedded",
    "Store.remove_tag",
    "Store.register_memory",
    "Store.unregister_memory",
    "Store.node_stats",
    "Store.close",
)
__version__: str

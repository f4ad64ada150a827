"""The settings of the transfer engine. As `schema.py`, of which this is a part."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from kvferry.config.options import Options
from kvferry.config.options import seconds as _seconds
from kvferry.config.options import size as _size


class TransferOptions(Options, frozen=True, kw_only=True):
    """The transfer engine of this process: addresses, transports, limits, deadlines."""

    bind: Annotated[
        str,
        Meta(
            min_length=1,
            description="Address and port to listen on, `host:port` or `[ipv6]:port`; a host name is looked "
            "up once, at start. Port 0 lets the kernel choose a free one, which is then published to peers. "
            "An address other than loopback needs `cluster_secret`.",
        ),
    ] = "127.0.0.1:0"
    advertise: Annotated[
        str,
        Meta(
            description="Address that peers are told to connect to, when it differs from `bind` (NAT, "
            "wildcard bind), as in `bind`. Port 0 means the bound port. Empty: the bound address."
        ),
    ] = ""
    transports: Annotated[
        tuple[Literal["shm", "tcp"], ...],
        Meta(
            min_length=1,
            max_length=2,
            description="Transports that may be used, best first. `shm` moves data between processes of one "
            "host without a socket; `tcp` works everywhere.",
        ),
    ] = ("shm", "tcp")
    rails: Annotated[
        tuple[str, ...],
        Meta(
            max_length=8,
            description="Local addresses or interface names that carry data on `tcp`, used side by side; "
            "what fails on one goes over the others. Peers learn them at first contact. Empty: the address "
            "of `bind` alone.",
        ),
    ] = ()
    device: Annotated[
        tuple[str, ...],
        Meta(
            max_length=8,
            description="Interfaces that `rails` may use; another one is an error. Without `rails`, these "
            "interfaces are the rails. Empty: any.",
        ),
    ] = ()
    numa_aware: Annotated[
        bool,
        Meta(description="Whether threads, memory and network interfaces of one NUMA node are put together."),
    ] = True
    preferred_numa_node: Annotated[
        int,
        Meta(
            ge=-1,
            le=1023,
            description="NUMA node whose rails, threads and memory are used first if `numa_aware` is set; "
            "-1: none.",
        ),
    ] = -1
    allow_fallback: Annotated[
        bool,
        Meta(
            description="Whether a transport further down the list may be used when the first one cannot "
            "reach a peer. When false, that is an error."
        ),
    ] = True
    cluster_secret: Annotated[
        str,
        Meta(
            description="Shared secret of the cluster: both ends prove that they know it before anything "
            "else is said. At least 16 bytes; required unless `bind` is loopback. Never printed."
        ),
    ] = ""
    cluster_secret_file: Annotated[
        str,
        Meta(
            description="File that holds the cluster secret (surrounding white space is dropped); keeps the "
            "secret out of command lines and the environment. Give either this or `cluster_secret`."
        ),
    ] = ""
    tls: Annotated[
        bool,
        Meta(
            description="Encrypt all `tcp` connections, control and data, by TLS 1.3; set it alike on all "
            "nodes. Needs OpenSSL 3 on the host. The nodes prove themselves by a key derived from "
            "`cluster_secret`, or by certificates, see `tls_cert_file`."
        ),
    ] = False
    tls_cert_file: Annotated[
        str,
        Meta(
            description="PEM file with this node's certificate and those between it and the authority. "
            "Together with `tls_key_file` and `tls_ca_file`; empty: a key from `cluster_secret` is used "
            "instead."
        ),
    ] = ""
    tls_key_file: Annotated[str, Meta(description="PEM file with the private key of `tls_cert_file`.")] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authority whose certificates are accepted, on both ends of a "
            "connection. Use one that certifies nothing but the nodes of this cluster."
        ),
    ] = ""
    tcp_streams: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Data connections per peer and rail on `tcp`, one thread each. One more per peer is "
            "kept free for small transfers once there are large ones.",
        ),
    ] = 2
    shm_lanes: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="Copying threads per peer on `shm`; only transfers of more than 2 MiB use a second "
            "one. 0: one for every four cores, but at least one and at most four.",
        ),
    ] = 0
    slice_bytes: Annotated[
        int,
        _size(
            "A transfer is cut into slices of about this size, so that small transfers are not held "
            "up by big ones.",
            ge=64 << 10,
            le=1 << 30,
        ),
    ] = 4 << 20
    max_connections: Annotated[
        int, Meta(ge=1, le=65536, description="Incoming connections kept at once; one more is refused.")
    ] = 1024
    checksum: Annotated[
        bool, Meta(description="CRC32C over every piece moved by `tcp`; a wrong one fails the piece.")
    ] = False
    io_uring: Annotated[
        bool,
        Meta(
            description="Read and write files by io_uring where the kernel allows it. When false: one "
            "`pread` or `pwrite` after the other."
        ),
    ] = True
    advise_huge_pages: Annotated[
        bool,
        Meta(description="Ask the kernel for huge pages (MADV_HUGEPAGE) for registered anonymous memory."),
    ] = True
    connect_timeout_s: Annotated[
        float, _seconds("Time allowed for reaching a peer and for the handshake.")
    ] = 5.0
    transfer_timeout_s: Annotated[
        float, _seconds("Deadline of a transfer that was given none; what is unfinished then fails.")
    ] = 30.0
    link_timeout_s: Annotated[
        float,
        _seconds(
            "How long the other end's kernel may acknowledge nothing until a connection counts as dead and "
            "what it carried goes over another rail. A slow or stopped process still acknowledges. Finer "
            "than about 3 seconds it cannot be told.",
            ge=1,
        ),
    ] = 5.0
    idle_probe_s: Annotated[
        float,
        _seconds(
            "A connection silent for this long is probed; after three unanswered probes the peer is lost."
        ),
    ] = 5.0
    fault_plan: Annotated[
        str, Meta(description="For tests only: faults to inject into transfers. Empty: none.")
    ] = ""

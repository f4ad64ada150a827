"""Every setting of KVFerry: its type, default, limits, unit and what it does.

The text beside a field is its documentation: `docs/configuration.md`, `kvferry config` and the error messages
are made from it. Add a field only together with the code that obeys it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvferry.config.options import Options
from kvferry.config.options import seconds as _seconds
from kvferry.config.options import size as _size
from kvferry.config.transfer_schema import TransferOptions

DEFAULT_SOURCE = "default"


class HandoffOptions(Options, frozen=True, kw_only=True):
    """Handing a request's KV cache from a prefill engine to a decode engine."""

    lease_s: Annotated[
        float,
        _seconds(
            "How long a prefill engine keeps the blocks of a finished prompt without hearing from the "
            "decode engine, which renews the lease every quarter of it. After that the blocks are "
            "freed.",
            ge=1,
        ),
    ] = 30.0
    load_timeout_s: Annotated[
        float,
        _seconds(
            "Time allowed for loading one request's KV cache, queueing included; then it is recomputed."
        ),
    ] = 30.0
    stream_timeout_s: Annotated[
        float,
        _seconds(
            "Time allowed for a prefill that is followed while it is computed, its queueing included; then "
            "the decode engine computes the prompt itself."
        ),
    ] = 120.0
    connect_timeout_s: Annotated[
        float, _seconds("Time allowed for the first contact with a prefill engine.")
    ] = 5.0
    control_timeout_s: Annotated[
        float,
        _seconds(
            "Time allowed for a prefill engine to confirm that a lease was held, else the load is void. "
            "One that is only slow, and whose transfer engine answers, has until load_timeout_s."
        ),
    ] = 5.0
    max_concurrent_loads: Annotated[
        int,
        Meta(ge=1, le=1024, description="Requests loaded at the same time by one worker; the rest queue."),
    ] = 8
    load_failure: Annotated[
        Literal["recompute", "fail"],
        Meta(
            description="What becomes of a request whose KV cache could not be loaded: its prompt is "
            "computed by the decode engine, or the request ends with an error."
        ),
    ] = "recompute"


class RouterOptions(Options, frozen=True, kw_only=True):
    """The HTTP front that sends each request to a prefill and a decode server."""

    host: Annotated[str, Meta(min_length=1, description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 lets the kernel choose.")] = (
        8000
    )
    prefill: Annotated[
        tuple[str, ...], Meta(description="Base URLs of the prefill servers, e.g. `http://127.0.0.1:8100`.")
    ] = ()
    decode: Annotated[
        tuple[str, ...], Meta(description="Base URLs of the decode servers. At least one is needed.")
    ] = ()
    encode: Annotated[
        tuple[str, ...],
        Meta(
            description="Base URLs of encode servers (vLLM with an encoder cache connector that produces): "
            "each image, clip and sound of a chat goes to one of them before the prompt is computed. Empty: "
            "media are encoded where the prompt is computed."
        ),
    ] = ()
    engine: Annotated[
        Literal["vllm", "sglang", "lmdeploy"],
        Meta(
            description="What the servers are, which says how a request gets through them. `vllm`: the "
            "prefill server's answer says where the KV cache is. `sglang`: both get the request at once, "
            "with `bootstrap_host`, `bootstrap_port` and `bootstrap_room`. `lmdeploy`: the two are connected "
            "over HTTP first, and the prefill server's answer names the blocks (`migration_request`)."
        ),
    ] = "vllm"
    bootstrap_ports: Annotated[
        tuple[str, ...],
        Meta(
            description="With `engine` `sglang`: the prefill servers' `--disaggregation-bootstrap-port`, in "
            "the order of `prefill`. Empty: SGLang's default, 8998, for all."
        ),
    ] = ()
    handoff: Annotated[
        Literal["auto", "pull"],
        Meta(
            description="`auto`: once a prefill server's transfer address is known from an earlier answer, "
            "the decode server gets the request at the same time and reads the KV cache while it is "
            "computed. `pull`: the decode server always gets it after the prefill server has finished, which "
            "is the only way with `engine` `lmdeploy`, and none with `sglang`."
        ),
    ] = "auto"
    prefill_events: Annotated[
        tuple[str, ...],
        Meta(
            description="Where the prefill servers publish their KV cache events (vLLM: "
            "`--kv-events-config`), in the order of `prefill`, e.g. `ipc:///run/vllm/p0` or "
            "`tcp://10.0.0.1:5557`. A request then goes where most of its prompt is cached, among equally "
            "loaded servers. Needs the extra `events`. Empty: none listened to."
        ),
    ] = ()
    prefill_replays: Annotated[
        tuple[str, ...],
        Meta(
            description="Where they answer for events that were missed (`replay_endpoint`), likewise. "
            "Without it, a router that starts late, or misses an event, knows less than they hold."
        ),
    ] = ()
    prefix_timeout_s: Annotated[
        float,
        _seconds(
            "Time allowed for a prefill server to tokenize a prompt that is given as text; without an "
            "answer, nobody counts as having any of it."
        ),
    ] = 0.25
    request_timeout_s: Annotated[
        float, _seconds("Time allowed for a whole request, from its arrival to the last byte of the answer.")
    ] = 600.0
    prefill_timeout_s: Annotated[
        float,
        _seconds("Time allowed for the prefill step; then the decode server computes the prompt itself."),
    ] = 120.0
    encode_timeout_s: Annotated[
        float,
        _seconds("Time allowed for encoding one medium; then the server that computes the prompt does it."),
    ] = 30.0
    connect_timeout_s: Annotated[float, _seconds("Time allowed for opening a connection to a server.")] = 5.0
    max_body_bytes: Annotated[
        int,
        _size(
            "Largest request body accepted; a larger one is refused with status 413.", ge=1 << 10, le=1 << 30
        ),
    ] = 32 << 20
    health_interval_s: Annotated[
        float,
        _seconds(
            "How often `/health` of each server is asked while all is well. A server that is down is asked "
            "twice a second.",
            ge=0.1,
        ),
    ] = 5.0
    drain_timeout_s: Annotated[
        float,
        _seconds(
            "After SIGTERM or SIGINT, how long requests under way may still run; the rest are then ended "
            "with an error.",
            ge=0,
        ),
    ] = 30.0


class ClusterOptions(Options, frozen=True, kw_only=True):
    """Which nodes form one pool, and how they find each other."""

    store: Annotated[
        str,
        Meta(
            min_length=1,
            description="Where the nodes find each other. `embedded`: the nodes of this user on this "
            "machine, through a directory. `etcd://host:2379`, several as "
            "`etcd://host1:2379,host2:2379`: the nodes of all machines, through etcd; "
            "`etcds://` over TLS. Needs `transfer.cluster_secret`, unless `embedded`.",
        ),
    ] = "embedded"
    name: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9._-]{1,64}$",
            description="Name of the cluster: nodes of different names share a store without meeting.",
        ),
    ] = "default"
    directory: Annotated[
        str,
        Meta(
            description="Directory for `embedded`; only its owner may have access. Empty: `kvferry` in "
            "`$XDG_RUNTIME_DIR`, or in `/run` for root, else `/tmp/kvferry-UID`."
        ),
    ] = ""
    lease_s: Annotated[
        float,
        _seconds(
            "A node that the store has not heard from for so long counts as dead; it reports every third of "
            "this time.",
            ge=1,
        ),
    ] = 5.0
    host: Annotated[
        str,
        Meta(
            max_length=255,
            description="What fails together, e.g. a rack: replicas go to nodes with different names here. "
            "Empty: the machine.",
        ),
    ] = ""
    user: Annotated[str, Meta(description="User name for etcd. Empty: no log-in.")] = ""
    password_file: Annotated[
        str, Meta(description="File that holds the password of `user` (surrounding white space is dropped).")
    ] = ""
    ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authority that certified the etcd servers, for `etcds://`. Empty: "
            "those that the system trusts."
        ),
    ] = ""
    cert_file: Annotated[
        str, Meta(description="PEM file with this node's certificate for etcd, together with `key_file`.")
    ] = ""
    key_file: Annotated[str, Meta(description="PEM file with the private key of `cert_file`.")] = ""


class StoreOptions(Options, frozen=True, kw_only=True):
    """The pool of KV objects: what a node of it offers, and how programs use it."""

    dram: Annotated[int, _size("Memory that this node offers for objects.", ge=1 << 20, le=1 << 50)] = 1 << 30
    ssd_directory: Annotated[
        str, Meta(description="Directory of this node's SSD tier, used by one node at a time. Empty: none.")
    ] = ""
    ssd: Annotated[int, _size("Space that the SSD tier may take in `ssd_directory`.", ge=0, le=1 << 55)] = 0
    policy: Annotated[
        Literal["prefix", "lru", "lfu", "s3fifo"],
        Meta(
            description="Which objects leave memory first. `prefix`: by expected reuse, ends of chains "
            "before their beginnings. The others are the plain policies of these names."
        ),
    ] = "prefix"
    ssd_policy: Annotated[
        Literal["prefix", "lru", "lfu", "s3fifo"], Meta(description="The same for the SSD tier.")
    ] = "lru"
    ssd_write: Annotated[
        Literal["back", "through"],
        Meta(description="When objects go to SSD: `back`, when they leave memory; `through`, at every put."),
    ] = "back"
    ssd_sync: Annotated[
        Literal["none", "segment", "commit"],
        Meta(
            description="When the SSD tier waits for the disk: `none` survives the end of the process; "
            "`segment` and `commit` also power loss, but for the last segment, or not even that."
        ),
    ] = "none"
    watermark_high: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            extra={"unit": "share"},
            description="Share of `dram` in use at which eviction begins.",
        ),
    ] = 0.95
    watermark_low: Annotated[
        float,
        Meta(gt=0, le=1, extra={"unit": "share"}, description="Share of `dram` in use at which it ends."),
    ] = 0.90
    max_objects: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 31,
            description="Objects kept at most; 0: one for each 2 KiB of memory and 64 KiB of SSD.",
        ),
    ] = 0
    demote_to_remote: Annotated[
        bool,
        Meta(description="Offer objects that leave memory to other nodes that have room, before SSD."),
    ] = False
    replicas: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description="Nodes that hold each object, on different hosts as far as there are any, unless a "
            "put says otherwise. The same on all nodes.",
        ),
    ] = 1
    hot_reads: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="An object read so often from another host within `hot_window_s` gets a replica "
            "there; 0: never.",
        ),
    ] = 8
    hot_window_s: Annotated[float, _seconds("See `hot_reads`.")] = 10.0
    reservation_lease_s: Annotated[
        float, _seconds("A put that was begun and is not finished by then is given up.")
    ] = 30.0
    pin_lease_s: Annotated[
        float,
        _seconds(
            "How long a reader on another host may take over one read. Readers of this host need no lease: "
            "their pins end with their process."
        ),
    ] = 60.0
    suspect_after_s: Annotated[float, _seconds("A node that does not answer for so long is passed over.")] = (
        1.0
    )
    timeout_s: Annotated[float, _seconds("Time allowed for a call that was given none.")] = 10.0
    verify: Annotated[
        bool, Meta(description="Check the digest of everything that is read, also from memory.")
    ] = False
    tenant: Annotated[
        str,
        Meta(
            max_length=255,
            description="Keys of different tenants never meet; no tenant sees another's objects.",
        ),
    ] = ""
    node: Annotated[
        str,
        Meta(
            description="Node that programs use, `host:port`; a host name is looked up once, when the store "
            "is opened. Empty: the one of this user on this machine that belongs to `cluster.name`."
        ),
    ] = ""


class PoolOptions(Options, frozen=True, kw_only=True):
    """Engines' use of the store: prefixes of prompts are loaded from it and saved to it."""

    enabled: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="Whether an engine pools. `auto`: if its `kv_role` is `kv_both`."),
    ] = "auto"
    node: Annotated[
        Literal["auto", "own", "attach"],
        Meta(
            description="`attach`: use the node that `store.node` names, or this machine's one, waiting "
            "for one without holding requests up. `own`: bring a node along, of size `store.dram`, which "
            "ends with the engine. `auto`: attach if there is one at the start, else `own`."
        ),
    ] = "auto"
    namespace: Annotated[
        str,
        Meta(
            max_length=255,
            description="Blocks are shared between engines that have the same word here. Change it when the "
            "weights of a model or an adapter change but not its name.",
        ),
    ] = ""
    save_generated: Annotated[
        bool, Meta(description="Save blocks of generated tokens too, for the next turn of a conversation.")
    ] = True
    max_held: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            extra={"unit": "share"},
            description="Share of the engine's KV blocks that may be held at a time for being saved; what "
            "goes beyond waits for later steps of its request, and is not saved if there are none.",
        ),
    ] = 0.25
    lookup_timeout_s: Annotated[
        float, _seconds("A request waits so long for what the pool has of its prompt; then that is nothing.")
    ] = 0.5
    load_timeout_s: Annotated[
        float, _seconds("Time allowed for one request's load, queueing included; then it is recomputed.")
    ] = 10.0
    save_timeout_s: Annotated[
        float, _seconds("Time allowed for saving the blocks of one step, queueing included.")
    ] = 30.0
    max_concurrent_loads: Annotated[
        int, Meta(ge=1, le=1024, description="Requests that one worker loads at a time; the rest queue.")
    ] = 4
    max_concurrent_saves: Annotated[int, Meta(ge=1, le=1024, description="The same for saves.")] = 2


class AdminOptions(Options, frozen=True, kw_only=True):
    """The HTTP interface of a node: health, status, metrics, administration."""

    bind: Annotated[
        str,
        Meta(
            min_length=1,
            description="Address and port to listen on; port 0 lets the kernel choose. An address other than "
            "loopback needs `token_file`.",
        ),
    ] = "127.0.0.1:0"
    token_file: Annotated[
        str,
        Meta(
            description="File with the token that requests must carry (`Authorization: Bearer TOKEN`), all "
            "but `/health`. Surrounding white space is dropped. Empty: none is asked for, and requests must "
            "name a loopback address, `localhost` or the address of `bind` as their host."
        ),
    ] = ""


class EncoderOptions(Options, frozen=True, kw_only=True):
    """Sharing the outputs of multimodal encoders through the store."""

    staging: Annotated[
        int,
        _size(
            "Memory for outputs on their way into the store, and as much for those on their way out of it. "
            "A larger output is not shared.",
            ge=1 << 20,
            le=1 << 40,
        ),
    ] = 256 << 20
    wait_s: Annotated[
        float, _seconds("How long a request waits for outputs at most; then the encoder runs here.")
    ] = 5.0


class LogOptions(Options, frozen=True, kw_only=True):
    """What is logged."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(
            description="Lowest level logged. `debug` has one line per request with peer, transport, bytes "
            "and time."
        ),
    ] = "info"
    summary_interval_s: Annotated[
        float, _seconds("How often a line that sums up the transfers is logged at level `info`.", ge=1)
    ] = 60.0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All sections, and for each key where its value came from."""

    transfer: TransferOptions = TransferOptions()
    handoff: HandoffOptions = HandoffOptions()
    router: RouterOptions = RouterOptions()
    cluster: ClusterOptions = ClusterOptions()
    store: StoreOptions = StoreOptions()
    pool: PoolOptions = PoolOptions()
    admin: AdminOptions = AdminOptions()
    encoder: EncoderOptions = EncoderOptions()
    log: LogOptions = LogOptions()
    sources: Mapping[str, str] = {}


SECTIONS: Mapping[str, type[Options]] = {
    "transfer": TransferOptions,
    "handoff": HandoffOptions,
    "router": RouterOptions,
    "cluster": ClusterOptions,
    "store": StoreOptions,
    "pool": PoolOptions,
    "admin": AdminOptions,
    "encoder": EncoderOptions,
    "log": LogOptions,
}

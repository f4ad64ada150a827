"""A node's record in the metadata store, and the tag that binds it to the cluster and the node.

    value = TAG "\\n" BODY
    TAG   = HMAC-SHA256(key, BODY) as 64 hexadecimal digits
    key   = HMAC-SHA256(cluster secret, "kvferry member record 1\\0" CLUSTER)
    BODY  = JSON of `Record`

The store is not trusted: whoever can write to it, but does not know the secret, can remove records, and
neither make nor change one. That an old one was put back is seen by its counter, and by the lease it names.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from kvferry.errors import DataCorruptError, InvalidArgumentError, ProtocolError, UnauthenticatedError
from kvferry.meta.store import Entry

FORMAT = 1
MAX_RECORD_BYTES = 8 << 10
_LABEL = b"kvferry member record 1\0"
_TAG_LENGTH = 64

Setting = str | int | bool
_Name = Annotated[str, Meta(pattern="^[a-z][a-z0-9_.-]{0,63}$")]
_Count = Annotated[int, Meta(ge=0, le=(1 << 62))]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One node as it describes itself. Immutable."""

    node_id: Annotated[str, Meta(pattern="^(?!0{32})[0-9a-f]{32}$")]
    endpoint: Annotated[str, Meta(min_length=1, max_length=256)]  # of its transfer engine, as peers dial it
    host_id: Annotated[str, Meta(min_length=1, max_length=128)]  # equal for the nodes of one machine
    incarnation: Annotated[int, Meta(ge=1, le=(1 << 62))] = 1  # for ids that outlive a process: +1 each start
    dram_bytes: _Count = 0  # what it offers
    ssd_bytes: _Count = 0
    roles: Annotated[tuple[_Name, ...], Meta(max_length=16)] = ()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is signed: the member, and what makes this writing of it different from all others."""

    format: int
    cluster: str
    counter: Annotated[int, Meta(ge=1, le=(1 << 62))]  # grows with every writing by this node
    lease: str  # the lease of the store that it was written with
    member: Member
    settings: Annotated[dict[_Name, Setting], Meta(max_length=64)]  # what all nodes must agree on


class Sealer:
    """Signs and checks the records of one cluster. Thread-safe."""

    def __init__(self, cluster: str, secret: str) -> None:
        self.cluster = cluster
        self._key = hmac.digest(secret.encode(), _LABEL + cluster.encode(), hashlib.sha256)

    def seal(self, member: Member, *, counter: int, lease: str, settings: Mapping[str, Setting]) -> bytes:
        """Return the value to store. Raises InvalidArgumentError if a field is not allowed."""
        record = Record(
            format=FORMAT, cluster=self.cluster, counter=counter, lease=lease, member=member,
            settings=dict(settings),
        )  # fmt: skip
        body = msgspec.json.encode(record)
        try:
            msgspec.json.decode(body, type=Record)
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(f"this node cannot describe itself so: {error}") from None
        if len(body) + _TAG_LENGTH + 1 > MAX_RECORD_BYTES:
            raise InvalidArgumentError(f"the description of this node takes {len(body)} bytes, too many")
        return self._tag(body) + b"\n" + body

    def open(self, entry: Entry) -> Record:
        """Return the record that an entry of the store holds.

        Raises UnauthenticatedError if somebody without the secret made it, or moved it to another key or
        another lease; DataCorruptError if it is no record at all; ProtocolError if its format is another.
        """
        tag, separator, body = entry.value[:MAX_RECORD_BYTES].partition(b"\n")
        if not separator or len(tag) != _TAG_LENGTH or len(entry.value) > MAX_RECORD_BYTES:
            raise DataCorruptError(f"{entry.key} holds no record of a node")
        if not hmac.compare_digest(tag, self._tag(body)):
            raise UnauthenticatedError(
                f"{entry.key} was not written by a node of this cluster: its tag is wrong (is transfer."
                "cluster_secret the same everywhere?)"
            )
        try:
            record = msgspec.json.decode(body, type=Record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{entry.key} has another format than ours: {error}") from None
        if record.format != FORMAT:
            raise ProtocolError(f"{entry.key} has format {record.format}, and we know {FORMAT}")
        if record.cluster != self.cluster or entry.key.rpartition("/")[2] != record.member.node_id:
            raise UnauthenticatedError(f"{entry.key} holds the record of another node")
        if not record.lease or record.lease != entry.lease:
            raise UnauthenticatedError(f"{entry.key} is not held by the lease that its node wrote it with")
        return record

    def _tag(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, hashlib.sha256).hex().encode()


def difference(ours: Mapping[str, Setting], theirs: Mapping[str, Setting]) -> tuple[str, str, str] | None:
    """Return the first setting that differs, with our value and theirs, or None."""
    for name in sorted({*ours, *theirs}):
        here, there = (json_of(values.get(name)) for values in (ours, theirs))
        if here != there:
            return name, here, there
    return None


def json_of(value: Setting | None) -> str:
    """Return a value as a sentence names it."""
    return "not set" if value is None else msgspec.json.encode(value).decode()

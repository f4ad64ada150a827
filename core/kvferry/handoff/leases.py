"""Lease names. A lease is the consumer's right to read a finished request's blocks until it says it is done.

The name is `<instance>.<sequence>.<seal>`: the instance is new at each start of the prefill engine, the
sequence grows by one per lease, so that a worker can tell a lease that it has not heard of yet from one that
has ended. The seal binds the name to what was leased (blocks, tokens, prompt): the dictionary that carries it
passes through HTTP clients, and a consumer that was told to read other blocks must not get them confirmed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

import msgspec

from kvferry.errors import InvalidArgumentError

_LEASE = re.compile(r"([0-9a-f]{16})\.([1-9][0-9]{0,17})\.([0-9a-f]{32})")


class LeaseName(NamedTuple):
    """The parts of a lease id."""

    instance: str
    sequence: int


def parse_lease_id(lease_id: str) -> LeaseName:
    """Return the parts of `lease_id`. Raises InvalidArgumentError."""
    match = _LEASE.fullmatch(lease_id)
    if match is None:
        raise InvalidArgumentError(f"{lease_id[:80]!r} is not a lease id (instance.sequence.seal)")
    return LeaseName(match[1], int(match[2]))


class LeaseAuthority(msgspec.Struct, frozen=True):
    """Who issues a prefill engine's leases. The key is known to its own scheduler and workers only."""

    instance: str
    key: bytes

    def name(self, sequence: int, content: str) -> str:
        """Return the lease id with this sequence for `content`, see `params.content_digest`."""
        body = f"{self.instance}.{sequence}"
        seal = hashlib.blake2b(f"{body}.{content}".encode(), key=self.key, digest_size=16)
        return f"{body}.{seal.hexdigest()}"

    def vouches(self, lease_id: str, content: str) -> bool:
        """Whether `lease_id` is ours and was issued for `content`."""
        try:
            sequence = parse_lease_id(lease_id).sequence
        except InvalidArgumentError:
            return False
        return hmac.compare_digest(lease_id.encode(), self.name(sequence, content).encode())


class LeaseIssuer:
    """Names the leases of one prefill engine. Not thread-safe: it belongs to the engine's scheduler."""

    def __init__(self) -> None:
        self.authority = LeaseAuthority(secrets.token_hex(8), secrets.token_bytes(32))
        self.issued_through = 0  # sequence of the newest lease

    def issue(self, content: str = "") -> str:
        """Return a lease id that was never used before, bound to `content`."""
        self.issued_through += 1
        return self.authority.name(self.issued_through, content)

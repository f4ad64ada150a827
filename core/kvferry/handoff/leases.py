"""Lease names. A lease is the consumer's right to read a finished request's blocks until it says it is done.

The name is `<instance>.<sequence>.<nonce>`: the instance is new at each start of the prefill engine, the
sequence grows by one per lease, so that a worker can tell a lease that it has not heard of yet from one that
has ended; the nonce cannot be guessed by another client.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from kvferry.errors import InvalidArgumentError

_LEASE = re.compile(r"([0-9a-f]{16})\.([1-9][0-9]{0,17})\.([0-9a-f]{16})")


class LeaseName(NamedTuple):
    """The parts of a lease id."""

    instance: str
    sequence: int


def parse_lease_id(lease_id: str) -> LeaseName:
    """Return the parts of `lease_id`. Raises InvalidArgumentError."""
    match = _LEASE.fullmatch(lease_id)
    if match is None:
        raise InvalidArgumentError(f"{lease_id[:80]!r} is not a lease id (instance.sequence.nonce)")
    return LeaseName(match[1], int(match[2]))


class LeaseIssuer:
    """Names the leases of one prefill engine. Not thread-safe: it belongs to the engine's scheduler."""

    def __init__(self) -> None:
        self.instance = secrets.token_hex(8)
        self.issued_through = 0  # sequence of the newest lease

    def issue(self) -> str:
        """Return a lease id that was never used before."""
        self.issued_through += 1
        return f"{self.instance}.{self.issued_through}.{secrets.token_hex(8)}"

"""The one exception tree. Every failure that reaches a user is a `KVFerryError`.

Native code reports a `Status` with a code; the bindings turn it into the class whose `code` is the same.
The message says what failed, with which peer or key, after how long, and what to do.
"""

from __future__ import annotations


class KVFerryError(Exception):
    """Base of all errors raised by KVFerry. `code` is stable and machine-readable."""

    code = "internal"


class InvalidArgumentError(KVFerryError, ValueError):
    """The caller's value is wrong; retrying cannot help."""

    code = "invalid_argument"


class ConfigError(InvalidArgumentError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""

    code = "config"


class NotFoundError(KVFerryError, LookupError):
    """No such region, peer, transfer, lease or key."""

    code = "not_found"


class OutOfRangeError(KVFerryError, ValueError):
    """Offset and length leave the region."""

    code = "out_of_range"


class AccessDeniedError(KVFerryError, PermissionError):
    """The region's access rights, or the kernel, forbid it."""

    code = "permission_denied"


class StaleError(KVFerryError):
    """The identity is right but an older generation: the thing was replaced since."""

    code = "stale"


class UnavailableError(KVFerryError, ConnectionError):
    """The peer or the transport cannot be reached now; another path may work."""

    code = "unavailable"


class PeerLostError(KVFerryError, ConnectionError):
    """The peer went away while work was under way."""

    code = "peer_lost"


class DeadlineExceededError(KVFerryError, TimeoutError):
    """The time allowed ran out."""

    code = "deadline_exceeded"


class CancelledError(KVFerryError):
    """The owner cancelled the work."""

    code = "cancelled"


class ProtocolError(KVFerryError):
    """A peer sent something that the wire format or the message schema does not allow."""

    code = "protocol_error"


class IdentityMismatchError(KVFerryError):
    """The address is held by another node than the one expected."""

    code = "identity_mismatch"


class UnauthenticatedError(KVFerryError, PermissionError):
    """The two sides' cluster secrets differ, or one has none."""

    code = "unauthenticated"


class GeometryMismatchError(KVFerryError):
    """Two engines' KV caches cannot be mapped onto each other; names the field and both values."""

    code = "geometry_mismatch"


class ResourceExhaustedError(KVFerryError):
    """A limit was reached: memory, connections, descriptors, queue length."""

    code = "resource_exhausted"


class UnsupportedError(KVFerryError):
    """This build, host, engine version or pair of peers cannot do what was asked."""

    code = "unsupported"


class DataCorruptError(KVFerryError):
    """Bytes arrived but their checksum is wrong."""

    code = "data_corrupt"


class ConflictError(KVFerryError):
    """Other bytes are stored under that key already, and objects are written once."""

    code = "conflict"


class InternalError(KVFerryError):
    """A bug in KVFerry; please report it with the message."""

    code = "internal"


def error_for_code(code: str) -> type[KVFerryError]:
    """Return the exception class for a native status code name; `InternalError` if unknown."""
    return _BY_CODE.get(code, InternalError)


def _subclasses(root: type[KVFerryError]) -> list[type[KVFerryError]]:
    found = []
    for child in root.__subclasses__():
        found.append(child)
        found.extend(_subclasses(child))
    return found


_BY_CODE: dict[str, type[KVFerryError]] = {cls.code: cls for cls in _subclasses(KVFerryError)}

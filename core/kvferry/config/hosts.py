"""Host names in settings: the engine knows numeric addresses only, so that it never waits for a name server.

Names are looked up here, once, by whoever starts something; how long that may take is up to the resolver.
"""

from __future__ import annotations

import re
import socket

from kvferry.errors import UnavailableError

# A name has a letter in it: what has none is meant as an address. `localhost` and `unix:` are the engine's.
_NAME = re.compile(
    r"(?P<host>(?!(?:unix|localhost):)(?=[0-9._-]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{0,252})"
    r":(?P<port>\d{1,5})"
)


def resolve_address(text: str) -> str:
    """Return `host:port` with the host's numeric address in place of its name; any other text as it is.

    Raises `UnavailableError` for a name that nobody knows.
    """
    match = _NAME.fullmatch(text)
    return f"{resolve_host(match['host'])}:{match['port']}" if match else text


def unresolved_address(text: str) -> str:
    """Return `host:port` with some address in place of a name, to see whether the rest of it is right."""
    match = _NAME.fullmatch(text)
    return f"127.0.0.1:{match['port']}" if match else text


def resolve_host(host: str) -> str:
    """Return the numeric address of `host` as endpoints write it. Raises `UnavailableError`."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UnavailableError(f"the host {host!r} cannot be found: {why}") from error
    family, *_, address = min(found, key=lambda entry: entry[0] == socket.AF_INET6)  # IPv4 if it has both
    return f"[{address[0]}]" if family == socket.AF_INET6 else str(address[0])

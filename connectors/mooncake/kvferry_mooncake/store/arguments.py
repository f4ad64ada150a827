"""What programs give, looked at before it is used: settings by name, lists of addresses and sizes."""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvferry.store import Runs
from kvferry_mooncake.codes import INVALID_PARAMS, logger, refused
from kvferry_mooncake.store.sessions import BEYOND_ADDRESSES, LEAST_ADDRESS, Ranges, can_be

Many = Sequence[int]
ManyMany = Sequence[Sequence[int]]
RunsCall = Callable[[list[str], Runs], list[int]]

_MASTER = "master_server_addr"
_ALIASES = {"master_server_address": _MASTER}  # as Mooncake's configuration files have it
_UNUSED = ("ipc_socket_path", "device_name")  # of Mooncake's clients, not of its `setup`


def settings_by_position(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the settings by name. Raises TypeError as Mooncake's `setup` does."""
    return inspect.signature(_setup).bind(*args, **kwargs).arguments


def settings_by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `setup` knows of a dictionary; a warning names what it does not know."""
    known = inspect.signature(_setup).parameters
    found = {name: value for name, value in given.items() if name in known}
    for alias, name in _ALIASES.items():
        if given.get(alias) and not found.get(name):
            found[name] = given[alias]
    for name in given:
        if name not in known and name not in _ALIASES and name not in _UNUSED:
            near = difflib.get_close_matches(str(name), [*known, *_ALIASES], n=1)
            hint = f", did you mean {near[0]!r}?" if near else f"; it knows {', '.join(known)}"
            logger.warning("setup does not know %r and leaves it out%s", name, hint)
    return found


def _setup(
    local_hostname: str,
    metadata_server: str,
    global_segment_size: int,
    local_buffer_size: int,
    protocol: str,
    rdma_devices: str,
    master_server_addr: str,
    engine: object = None,
    enable_ssd_offload: bool = False,
    ssd_offload_path: str = "",
    tenant_id: str = "default",
    enable_client_http_server: bool = False,
    client_http_port: int = 9300,
) -> None:
    """Have the signature that Mooncake's `setup` has; it is only looked at."""


def alike(keys: Sequence[str], *lists: Sequence[Any]) -> bool:
    """Say whether there is one entry for each key; the log says if not."""
    lengths = [len(each) for each in lists]
    if all(length == len(keys) for length in lengths):
        return True
    refused("uneven", "there are %d keys, but lists of %s entries", len(keys), lengths)
    return False


def each_flat(keys: Sequence[str], addresses: Many, sizes: Many, call: RunsCall) -> list[int]:
    """Make a call with one run for each key; a code for each key, -600 where the run cannot be memory."""
    if not alike(keys, addresses, sizes):
        return [INVALID_PARAMS] * len(keys)
    return _each(keys, addresses, sizes, np.ones(len(keys), np.int64), call)


def each_nested(keys: Sequence[str], addresses: ManyMany, sizes: ManyMany, call: RunsCall) -> list[int]:
    """As `each_flat`, with several runs for each key."""
    if not alike(keys, addresses, sizes):
        return [INVALID_PARAMS] * len(keys)
    counts = [len(each) for each in addresses]
    if counts != [len(each) for each in sizes]:
        return [refused("uneven", "a key has more addresses than sizes, or fewer")] * len(keys)
    flat_addresses = [each for some in addresses for each in some]
    flat_sizes = [each for some in sizes for each in some]
    return _each(keys, flat_addresses, flat_sizes, np.array(counts, np.int64), call)


def _each(keys: Sequence[str], addresses: Many, sizes: Many, counts: Any, call: RunsCall) -> list[int]:
    if not len(keys):
        return []
    # Most calls have nothing wrong: this is cheaper for a few runs than numpy is.
    if not len(addresses) or (
        min(addresses) >= LEAST_ADDRESS
        and min(sizes) >= 0
        and max(addresses) < BEYOND_ADDRESSES
        and max(sizes) < BEYOND_ADDRESSES
    ):
        runs = Runs(np.asarray(addresses, np.uint64), np.asarray(sizes, np.uint64), counts, [])
        return call(list(keys), runs)
    good = _good_keys(len(keys), addresses, sizes, counts)
    codes = [INVALID_PARAMS] * len(keys)
    if not good.any():
        return codes
    kept = np.repeat(good, counts).tolist()
    runs = Runs(
        np.array(list(itertools.compress(addresses, kept)), np.uint64),
        np.array(list(itertools.compress(sizes, kept)), np.uint64),
        counts[good],
        [],
    )
    for place, code in zip(
        np.flatnonzero(good).tolist(), call(list(itertools.compress(keys, good)), runs), strict=True
    ):
        codes[place] = code
    return codes


def _good_keys(count: int, addresses: Many, sizes: Many, counts: Any) -> Any:
    """Say of each key whether all its runs can be memory; the log names the first that cannot."""
    good = np.ones(count, bool)
    owners = np.repeat(np.arange(count), counts).tolist()
    for owner, address, size in zip(owners, addresses, sizes, strict=True):
        if not can_be(address, size):
            refused("address", "%d bytes at the address %d cannot be", size, address)
            good[owner] = False
    return good


def each_ranges(
    keys: Sequence[str],
    addresses: ManyMany,
    sizes: ManyMany,
    offsets: ManyMany,
    call: Callable[[str, Ranges], int],
) -> list[int]:
    """Make a call with the ranges of each key; a code for each key."""
    if not alike(keys, addresses, sizes, offsets):
        return [INVALID_PARAMS] * len(keys)
    return [
        call(key, (each, lengths, starts))
        for key, each, lengths, starts in zip(keys, addresses, sizes, offsets, strict=True)
    ]

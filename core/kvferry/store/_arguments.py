"""From Python values to the arrays that the native store takes."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvferry import _native
from kvferry.errors import InvalidArgumentError
from kvferry.transfer import Memory, memory_of

# Keys of a batch: a sequence of keys, or one uint8 array of shape [n, length], e.g. of block keys.
Keys = Sequence[bytes | str] | np.ndarray

_EMPTY = Memory(0, 0, read_only=False, owner=b"")
_LEAST_TTL_S = 0.001  # what the native store counts in
_MAX_SECONDS = 1e6  # as the native store cuts times
_NUMBERS: Any = (float, int, numbers.Real)  # what most times are comes first


def seconds_argument(name: str, value: Any) -> float:
    """Return the time `value` of the argument `name`, cut to 1e6 (11 days). Raises `InvalidArgumentError`."""
    if not isinstance(value, _NUMBERS):
        raise InvalidArgumentError(f"{name} is a number of seconds, not {type(value).__name__}")
    if not value >= 0:
        raise InvalidArgumentError(f"{name}: a time of {value} s is not possible")
    return _MAX_SECONDS if value > _MAX_SECONDS else float(value)


def ttl_argument(value: Any) -> float:
    """Return a time to live. Raises `InvalidArgumentError` for one that ends before it begins."""
    seconds = seconds_argument("ttl_s", value)
    if seconds < _LEAST_TTL_S:
        raise InvalidArgumentError(
            f"ttl_s: {value} s are no time to live; {_LEAST_TTL_S:g} s is the least, None means for good"
        )
    return seconds


def whole_argument(name: str, value: Any) -> int:
    """Return the whole number `value` of the argument `name`. Raises `InvalidArgumentError`."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} is a whole number, not {type(value).__name__}") from None


def flag_argument(name: str, value: Any) -> bool:
    """Return the truth value `value` of the argument `name`. Raises `InvalidArgumentError`."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgumentError(f"{name} is True or False, not {type(value).__name__}")
    return bool(value)


def key_bytes(key: bytes | str, *, what: str = "key") -> bytes:
    """Return a key (or `what` else it is called in messages) as bytes: text is encoded as UTF-8.

    Raises `InvalidArgumentError` for all else: `bytes(5)` would be five zero bytes.
    """
    if isinstance(key, bytes):
        return key
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    if not isinstance(key, str):
        raise InvalidArgumentError(f"a {what} is bytes or text, not {type(key).__name__}")
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the {what} {key!r} is no text that UTF-8 can hold: {error.reason}"
        ) from None


def tags_argument(tags: Sequence[str]) -> list[str]:
    """Return the tags of an object as a list. Raises `InvalidArgumentError` for what is not several texts."""
    if isinstance(tags, (str, bytes)) or not isinstance(tags, (list, tuple, Iterable)):
        raise InvalidArgumentError(f"tags must be a sequence of texts, not one: [{tags!r}]")
    return [tag_argument(tag) for tag in tags]


def tag_argument(tag: str) -> str:
    """Return a tag. Raises `InvalidArgumentError` for what is no text that UTF-8 can hold."""
    if not isinstance(tag, str):
        raise InvalidArgumentError(f"a tag is text, not {type(tag).__name__}")
    key_bytes(tag, what="tag")
    return tag


def keys_argument(keys: Keys) -> Any:
    """Return keys in a form that the native store reads: a list of bytes, or the array itself."""
    if isinstance(keys, np.ndarray):
        return np.ascontiguousarray(keys)
    if isinstance(keys, (bytes, str)):
        raise InvalidArgumentError(f"keys must be a sequence of keys, not one key: [{keys!r}]")
    if not isinstance(keys, (list, tuple, Iterable)):
        raise InvalidArgumentError(f"keys must be a sequence of keys, not {type(keys).__name__}")
    return [key_bytes(key) for key in keys]


class Runs(NamedTuple):
    """Where the bytes of many values lie. `owners` must live as long as the call."""

    addresses: Any  # numpy uint64 [runs of all values]
    lengths: Any  # numpy uint64, alike
    counts: Any  # numpy int64 [values]: how many runs each has
    owners: list[object]


def runs_of(values: Sequence[Any], *, writable: bool) -> Runs:
    """Find the memory of values, each a buffer or a list or tuple of buffers that follow one another.

    Raises `InvalidArgumentError` for what has no contiguous host memory, or is read-only though `writable`.
    """
    found = buffers_or_runs(values, writable=writable)
    if isinstance(found, Runs):
        return found
    return Runs(
        np.frombuffer(found.addresses, dtype=np.uint64),
        np.frombuffer(found.lengths, dtype=np.uint64),
        np.frombuffer(found.counts, dtype=np.int64),
        [found],
    )


def buffers_or_runs(values: Sequence[Any], *, writable: bool) -> _native.BufferRuns | Runs:
    """As `runs_of`, but as the native store found it where it could by itself, which saves arrays."""
    if isinstance(values, (bytes, bytearray, memoryview, str)):
        raise InvalidArgumentError(f"there must be a sequence of values, not one {type(values).__name__}")
    if not isinstance(
        values, (list, tuple, Sequence, np.ndarray)
    ):  # a generator, say, could be read only once
        raise InvalidArgumentError(
            f"values must be a sequence (a list or tuple) of buffers, not {type(values).__name__}"
        )
    found = _native.BufferRuns.find(values, writable)
    if found is not None:
        return found
    memories: list[Memory] = []
    counts = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        parts = value if isinstance(value, (list, tuple)) else (value,)
        counts[index] = len(parts)
        memories.extend(_memory(part, writable=writable) for part in parts)
    return Runs(
        np.fromiter((memory.address for memory in memories), dtype=np.uint64, count=len(memories)),
        np.fromiter((memory.length_bytes for memory in memories), dtype=np.uint64, count=len(memories)),
        counts,
        [memory.owner for memory in memories],
    )


def _is_empty(value: Any) -> bool:
    """Say whether it is a buffer of 0 bytes, which has no memory to find."""
    try:
        return memoryview(value).nbytes == 0
    except (TypeError, ValueError):  # no such buffer, e.g. a torch tensor, or an array of dates
        pass
    try:
        return bool(getattr(value, "nbytes", 1) == 0)
    except RuntimeError:  # a sparse torch tensor, which is refused with a reason later
        return False


def _refuse_other_orders(value: Any) -> None:
    """Refuse columns first: the bytes of such an array in memory are not those of its elements in turn."""
    try:
        ordered = memoryview(value).c_contiguous
    except (TypeError, ValueError):  # no such buffer: an array whose dtype the buffer protocol does not have
        ordered = bool(getattr(getattr(value, "flags", None), "c_contiguous", True))
    if not ordered:
        raise InvalidArgumentError(
            f"this {type(value).__name__} is not contiguous in C order; put numpy.ascontiguousarray() of it,"
            " or read into such a copy"
        )


def _memory(value: Any, *, writable: bool) -> Memory:
    if _is_empty(value):
        return _EMPTY
    _refuse_other_orders(value)
    memory = memory_of(value)
    if memory.kind != "host":
        raise InvalidArgumentError(
            f"the store moves host memory; this value lies in memory of kind {memory.kind}"
        )
    if writable and memory.read_only:
        raise InvalidArgumentError(f"a {type(value).__name__} that is read-only cannot be read into")
    return memory

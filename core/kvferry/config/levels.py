"""`storage_levels`: the tiers of a node as a list, as other KV caches have them, turned into settings.

[[storage_levels]]
name = "memory"
type = "dram"             # dram first, then remote_dram and ssd, each at most once
capacity = "64GiB"
policy = "prefix"

[[storage_levels]]
type = "ssd"
capacity = "1TiB"
path = "/mnt/nvme"
transfer = "io_uring"     # or "pread"
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

KEY = "storage_levels"
_ORDER = ("dram", "remote_dram", "ssd")


class _Level(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["dram", "remote_dram", "ssd"]
    name: str = ""  # for people; nothing refers to it
    capacity: str | Annotated[int, Meta(ge=1)] | None = None
    policy: str | None = None
    path: str | None = None
    transfer: Literal["auto", "shm", "tcp", "io_uring", "pread"] = "auto"


# type -> what it needs, and the setting that each of its fields becomes
_FIELDS: Mapping[str, Mapping[str, str]] = {
    "dram": {"capacity": "store.dram", "policy": "store.policy"},
    "remote_dram": {},
    "ssd": {"capacity": "store.ssd", "path": "store.ssd_directory", "policy": "store.ssd_policy"},
}
_NEEDED = {"dram": ("capacity",), "remote_dram": (), "ssd": ("capacity", "path")}
_TRANSFERS = {
    "dram": ("auto", "shm", "tcp"), "remote_dram": ("auto", "tcp"), "ssd": ("auto", "io_uring", "pread"),
}  # fmt: skip


def settings_of(value: Any) -> dict[str, Any]:
    """Return the settings, by key, that a list of levels stands for. Raises ValueError with what is wrong."""
    try:
        _check_words(value)
        levels = msgspec.convert(value, type=list[_Level])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    kinds = [level.type for level in levels]
    if not kinds or kinds[0] != "dram":
        raise ValueError("the first level must be of type dram")
    if kinds != [kind for kind in _ORDER if kind in kinds]:
        raise ValueError(f"levels come in the order {', '.join(_ORDER)}, each at most once")
    found: dict[str, Any] = {"store.demote_to_remote": "remote_dram" in kinds}
    for level in levels:
        found |= _settings_of_level(level)
    return found


def _check_words(value: Any) -> None:
    """Refuse fields that a level does not have and words that a field does not take, with the nearest one."""
    if not isinstance(value, list):
        return  # whatever else is wrong, the conversion says
    words = {
        name: typing.get_args(hint)
        for name, hint in typing.get_type_hints(_Level).items()
        if typing.get_origin(hint) is Literal
    }
    for number, level in enumerate(value, start=1):
        for name, given in level.items() if isinstance(level, Mapping) else ():
            if name not in _Level.__struct_fields__:
                raise ValueError(
                    f'level {number} has an unknown field "{name}"{_hint(name, _Level.__struct_fields__)}'
                )
            if name in words and isinstance(given, str) and given not in words[name]:
                raise ValueError(f'level {number} has an unknown {name} "{given}"{_hint(given, words[name])}')


def _hint(word: object, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(word), known, n=1)
    return f", did you mean {near[0]}?" if near else f"; expected one of {', '.join(known)}"


def _settings_of_level(level: _Level) -> dict[str, Any]:
    fields = _FIELDS[level.type]
    given = {name: getattr(level, name) for name in ("capacity", "policy", "path")}
    for name, value in given.items():
        if value is None and name in _NEEDED[level.type]:
            raise ValueError(f"the level of type {level.type} needs a {name}")
        if value is not None and name not in fields:
            raise ValueError(f"a level of type {level.type} has no {name}")
    if level.transfer not in _TRANSFERS[level.type]:
        raise ValueError(
            f"a level of type {level.type} is reached by one of {', '.join(_TRANSFERS[level.type])}, "
            f"not {level.transfer}"
        )
    found = {key: given[name] for name, key in fields.items() if given[name] is not None}
    if level.type == "ssd" and level.transfer != "auto":
        found["transfer.io_uring"] = level.transfer == "io_uring"
    if level.type == "dram" and level.transfer != "auto":
        found["transfer.transports"] = [level.transfer]
    return found

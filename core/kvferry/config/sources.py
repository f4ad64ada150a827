"""The places settings come from, each turned into a flat layer of raw values."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvferry.config import levels
from kvferry.config.fields import all_fields, fields_by_key
from kvferry.config.schema import SECTIONS
from kvferry.errors import ConfigError

FILE_VARIABLE = "KVFERRY_CONFIG"
DEFAULT_FILES = ("kvferry.toml", "/etc/kvferry.toml")
MAX_FILE_BYTES = 1 << 20

# `protocol` is the name that other KV transfer configurations use for the choice of transport.
PROTOCOLS: Mapping[str, tuple[str, ...]] = {"auto": ("shm", "tcp"), "shm": ("shm",), "tcp": ("tcp",)}

# Keys of other KV cache configurations that mean one of ours.
ALIASES: Mapping[str, str] = {
    "eviction.watermark_low": "store.watermark_low",
    "eviction.watermark_high": "store.watermark_high",
}
_TABLES = {*SECTIONS, "eviction"}

# A Kubernetes service called e.g. `kvferry-router` injects KVFERRY_ROUTER_PORT=tcp://10.0.0.1:8000 and more.
_SERVICE_LINK = re.compile(r"(_SERVICE_(HOST|PORT(_\w+)?)|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


class Entry(NamedTuple):
    """One value as it was found."""

    key: str  # "transfer.bind"
    value: Any
    source: str  # "environment KVFERRY_TRANSFER_BIND"
    text: bool  # whether the value is text that still has to be parsed


class Layer(NamedTuple):
    """What one place sets, and what is wrong there."""

    entries: list[Entry]
    problems: list[str]


def argument_layer(
    overrides: Mapping[str, Any], source: str, *, text: bool, others: Iterable[str] = ()
) -> Layer:
    """Read a mapping with nested sections, dotted keys, or both. `others`: names to advise besides ours."""
    return _keyed_layer(_flatten(overrides), source, text=text, others=others)


def file_layer(path: Path | None, environ: Mapping[str, str]) -> Layer:
    """Read the TOML file `path`, else the one the environment names, else the first default file found."""
    named = path or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    chosen = named or next((Path(name) for name in DEFAULT_FILES if Path(name).is_file()), None)
    if chosen is None:
        return Layer([], [])
    try:
        content = read_small_file(chosen)
        document = msgspec.toml.decode(content)
    except OSError as error:
        hint = f" (named by {FILE_VARIABLE})" if named is not None and path is None else ""
        raise ConfigError(f"cannot read the configuration file {chosen}{hint}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {chosen} is not valid TOML: {error}") from error
    return _keyed_layer(_flatten(document), f"file {chosen}", text=False)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Read the `KVFERRY_<SECTION>_<KEY>` variables."""
    known = {field.environment: field.key for field in all_fields()}
    known |= {"KVFERRY_PROTOCOL": "protocol", "KVFERRY_TRANSFER_PROTOCOL": "transfer.protocol"}
    layer = Layer([], [])
    for name, value in sorted(environ.items()):
        if not name.startswith("KVFERRY_") or name == FILE_VARIABLE:
            continue
        if _SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_URL.match(value)):
            continue
        if name in known:
            _add(layer, Entry(known[name], value, f"environment {name}", True))
        elif near := _near_variable(name, known):
            layer.problems.append(f"unknown environment variable {name}{near}")
    return layer


def environment_value(name: str) -> str:
    """Return one variable of this process that is not ours (e.g. of an engine); empty if not set."""
    return os.environ.get(name, "")


def process_environment() -> Mapping[str, str]:
    """Return the environment of this process. The only place where KVFerry touches it."""
    return os.environ


def read_small_file(path: Path) -> bytes:
    """Return the content of `path`. Raises OSError, ConfigError if it is larger than 1 MiB."""
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            f"the file {path} is larger than {MAX_FILE_BYTES} bytes; this cannot be a configuration"
        )
    return content


def _near_variable(name: str, known: Mapping[str, str]) -> str | None:
    """Return a hint when `name` looks like a misspelt setting; other variables are not ours to judge."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    if close:
        return f", did you mean {close[0]}?"
    section = name.removeprefix("KVFERRY_").split("_", 1)[0].lower()
    return f", section {section} has no such key" if section in SECTIONS else None


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in mapping.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in _TABLES:
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _keyed_layer(
    items: Iterator[tuple[str, Any]], source: str, *, text: bool, others: Iterable[str] = ()
) -> Layer:
    layer = Layer([], [])
    for key, value in items:
        if key in SECTIONS:
            layer.problems.append(
                f"{key} in {source} is a section and takes a table of keys, not a single value"
            )
        elif key == levels.KEY:
            _add_levels(layer, value, source)
        elif key in ALIASES:
            _add(layer, Entry(ALIASES[key], value, f"{source} ({key})", text))
        elif key in fields_by_key() or key in ("protocol", "transfer.protocol"):
            _add(layer, Entry(key, value, source, text))
        else:
            layer.problems.append(f'unknown key "{key}" in {source}{_near_key(key, others)}')
    return layer


def _near_key(key: str, others: Iterable[str]) -> str:
    others = tuple(others)
    close = difflib.get_close_matches(key, [*fields_by_key(), *others], n=1, cutoff=0.6)
    if "." not in key:
        names = {field.name: field.key for field in reversed(all_fields())}
        match = difflib.get_close_matches(key, [*names, *SECTIONS, "protocol", *others], n=1, cutoff=0.6)
        close = [str(names.get(match[0], match[0]))] if match else close
    return f', did you mean "{close[0]}"?' if close else " (`kvferry config` lists all keys)"


def _add_levels(layer: Layer, value: Any, source: str) -> None:
    try:
        settings = levels.settings_of(value)
    except ValueError as error:
        layer.problems.append(f"{levels.KEY} from {source}: {error}")
        return
    for key, setting in settings.items():
        _add(layer, Entry(key, setting, f"{source} ({levels.KEY})", False))


def _add(layer: Layer, entry: Entry) -> None:
    """Add one entry; the alias `protocol` becomes `transfer.transports`; the same key twice is a problem."""
    if entry.key in ("protocol", "transfer.protocol"):
        transports = PROTOCOLS.get(entry.value) if isinstance(entry.value, str) else None
        if transports is None:
            layer.problems.append(
                f"{entry.key}: {entry.value!r} from {entry.source} is not allowed; "
                f"expected one of {', '.join(PROTOCOLS)}"
            )
            return
        source = f"{entry.source} ({entry.key}={entry.value})"
        entry = Entry("transfer.transports", list(transports), source, False)
    if (other := next((other for other in layer.entries if other.key == entry.key), None)) is not None:
        also = "" if other.source == entry.source else f" and {other.source}"
        layer.problems.append(f"{entry.key} is set twice in {entry.source}{also}")
        return
    layer.entries.append(entry)

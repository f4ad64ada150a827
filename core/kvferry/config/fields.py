"""The schema seen as a flat table of keys, and the conversion of single values."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from kvferry.config import units
from kvferry.config.options import SECRET_MASK, Options, is_secret
from kvferry.config.schema import SECTIONS
from kvferry.errors import ConfigError


class Field(NamedTuple):
    """One setting."""

    key: str  # "transfer.bind"
    section: str
    name: str
    type: Any  # the annotation, limits included
    default: Any
    doc: str
    unit: str  # "seconds", "bytes", "share" (of 1) or ""
    expected: str  # in words, limits included: "integer from 1 to 64"

    @property
    def environment(self) -> str:
        """The environment variable that sets it."""
        return f"KVFERRY_{self.section}_{self.name}".upper()

    @property
    def secret(self) -> bool:
        """Whether its value must never be printed."""
        return is_secret(self.name)

    def show_unchecked(self, value: Any) -> str:
        """Return a value that may have the wrong type, for an error message; a secret is masked."""
        return SECRET_MASK if self.secret else repr(value)

    def show(self, value: Any) -> str:
        """Return `value` as a user would write it; a secret is masked."""
        if self.secret:
            return SECRET_MASK if value else '""'
        if self.unit == "bytes":
            return units.format_size(value)
        if self.unit == "seconds":
            return units.format_duration(value)
        if isinstance(value, tuple):
            return "[" + ", ".join(f'"{item}"' for item in value) + "]"
        if isinstance(value, bool):
            return "true" if value else "false"
        return f'"{value}"' if isinstance(value, str) else str(value)


@functools.cache
def all_fields() -> tuple[Field, ...]:
    """Return every setting, in the order of the schema."""
    found = []
    for section, options in SECTIONS.items():
        hints = typing.get_type_hints(options, include_extras=True)
        for info in msgspec.structs.fields(options):
            meta = _meta(hints[info.name])
            unit = str((meta.extra or {}).get("unit", ""))
            found.append(
                Field(
                    key=f"{section}.{info.name}",
                    section=section,
                    name=info.name,
                    type=hints[info.name],
                    default=info.default,
                    doc=meta.description or "",
                    unit=unit,
                    expected=_expected(hints[info.name], unit),
                )
            )
    return tuple(found)


@functools.cache
def fields_by_key() -> Mapping[str, Field]:
    """Return the settings by key (`section.name`)."""
    return {field.key: field for field in all_fields()}


def convert_value(field: Field, value: Any, *, text: bool) -> Any:
    """Return `value` as the field's type; `text`: it came as text (environment, flag).

    Raises ValueError: with why, if it cannot be read; without, if it is not what the field expects.
    """
    if isinstance(value, str) and field.unit == "bytes":
        value = units.parse_size(value)
    elif isinstance(value, str) and field.unit == "seconds":
        value = units.parse_duration(value)
    elif text and isinstance(value, str) and isinstance(field.default, tuple):
        value = [item.strip() for item in value.split(",") if item.strip()]
    elif isinstance(value, str) and isinstance(field.default, tuple):
        value = [value]
    try:
        return msgspec.convert(value, type=field.type, strict=not text)
    except msgspec.ValidationError:
        raise ValueError from None


def check_options(options: Options) -> None:
    """Check values that were given in code, as `load_config` checks those that come from outside.

    Raises `ConfigError` that names every wrong one with what was expected.
    """
    section = next(name for name, kind in SECTIONS.items() if isinstance(options, kind))
    problems = []
    for field in all_fields():
        if field.section != section:
            continue
        value = getattr(options, field.name)
        try:
            msgspec.convert(value, type=field.type)
        except msgspec.ValidationError:
            problems.append(
                f"{field.key}: {field.show_unchecked(value)} is not allowed; expected {field.expected}"
            )
    if problems:
        raise ConfigError("; ".join(problems))


def _meta(annotation: Any) -> msgspec.Meta:
    return next(extra for extra in typing.get_args(annotation)[1:] if isinstance(extra, msgspec.Meta))


def _expected(annotation: Any, unit: str) -> str:
    meta, plain = _meta(annotation), typing.get_args(annotation)[0]
    if typing.get_origin(plain) is typing.Literal:
        return "one of " + ", ".join(typing.get_args(plain))
    if typing.get_origin(plain) is tuple:
        item = typing.get_args(plain)[0]
        return "list of " + ("text" if item is str else ", ".join(typing.get_args(item)))
    if plain is bool:
        return "true or false"
    if plain is str:
        return "text" if not meta.min_length else "text, not empty"
    return _expected_number(meta, plain, unit)


def _expected_number(meta: msgspec.Meta, plain: type, unit: str) -> str:
    def show(limit: float) -> str:
        if unit == "bytes":
            return units.format_size(int(limit))
        return units.format_duration(limit) if unit == "seconds" else f"{limit:g}"

    kind = {"bytes": "size", "seconds": "duration"}.get(unit, "integer" if plain is int else "number")
    if meta.gt is not None:
        return f"{kind} above {show(meta.gt)}, {show(meta.le or math.inf)} at most"
    return f"{kind} from {show(meta.ge or 0)} to {show(meta.le or math.inf)}"

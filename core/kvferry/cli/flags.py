"""Flags made from a section of the settings: one per field, with its text, limits and default."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import click

from kvferry.config import Config, Field, all_fields, apply_log_options, load_config
from kvferry.errors import ConfigError


def fields_of(section: str, *, without: Collection[str] = ()) -> list[Field]:
    """Return the fields of a section that get a flag."""
    return [field for field in all_fields() if field.section == section and field.name not in without]


def settings_flags(fields: list[Field]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command with a flag for each field, `--config` and `--log-level`; all reach it by name."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")(
            function
        )
        function = click.option(
            "--config",
            "file",
            type=click.Path(dir_okay=False),
            help="Read this file instead of the usual ones.",
        )(function)
        for field in reversed(fields):
            help_text = f"{field.doc} [{field.expected}; default {field.show(field.default)}]"
            many = isinstance(field.default, tuple)
            option = click.option(
                _flag(field), field.name, multiple=many, metavar=_metavar(field), help=help_text
            )
            function = option(function)
        return function

    return decorate


def load_settings(
    fields: list[Field],
    values: Mapping[str, Any],
    *,
    file: str | None,
    log_level: str | None,
    **more: str | None,
) -> Config:
    """Return the configuration with what was given on the command line, and set up logging.

    `more`: settings by key, dots written as two underscores (`cluster__store`); None is left out.
    """
    overrides: dict[str, Any] = {}
    for field in fields:
        value = values[field.name]
        if isinstance(value, tuple):
            _refuse_empty(field, value)
        if value not in (None, ()):
            overrides[field.key] = ",".join(value) if isinstance(value, tuple) else value
    overrides |= {key.replace("__", "."): value for key, value in more.items() if value is not None}
    if log_level is not None:
        overrides["log.level"] = log_level
    config = load_config(overrides, file=file, overrides_source="command line", overrides_are_text=True)
    apply_log_options(config.log, own_process=True)
    return config


def _flag(field: Field) -> str:
    return f"--{field.name.replace('_', '-')}"


def _member(field: Field) -> str:
    """Name what a list has."""
    return "PORT" if field.name.endswith("_ports") else "URL"


def _metavar(field: Field) -> str:
    if isinstance(field.default, tuple):
        return "{0}[,{0}...]".format(_member(field))
    return {"seconds": "DURATION", "bytes": "SIZE"}.get(field.unit, type(field.default).__name__.upper())


def _refuse_empty(field: Field, values: tuple[str, ...]) -> None:
    """Refuse a list without members: most likely an unset shell variable, not the user's wish."""
    if any(not value.replace(",", " ").strip() for value in values):
        raise ConfigError(
            f"{_flag(field)} is empty: give at least one {_member(field)}, or leave the option out"
        )

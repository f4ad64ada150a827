"""`kvferry router`: flags made from the `router` section of the settings; the work is in `kvferry.router`."""

from __future__ import annotations

from typing import Any

import click

from kvferry.config import Field, all_fields, apply_log_options, load_config
from kvferry.errors import ConfigError

_FIELDS = [field for field in all_fields() if field.section == "router"]


def _options(function: Any) -> Any:
    for field in reversed(_FIELDS):
        help_text = f"{field.doc} [{field.expected}; default {field.show(field.default)}]"
        flag = f"--{field.name.replace('_', '-')}"
        many = isinstance(field.default, tuple)
        function = click.option(flag, field.name, multiple=many, metavar=_metavar(field), help=help_text)(
            function
        )
    return function


def _metavar(field: Field) -> str:
    if isinstance(field.default, tuple):
        return "URL[,URL...]"
    return {"seconds": "DURATION", "bytes": "SIZE"}.get(field.unit, type(field.default).__name__.upper())


def _refuse_empty(field: Field, values: tuple[str, ...]) -> None:
    """Refuse a list without members: most likely an unset shell variable, not the user's wish."""
    if any(not value.replace(",", " ").strip() for value in values):
        flag = f"--{field.name.replace('_', '-')}"
        raise ConfigError(f"{flag} is empty: give at least one URL, or leave the option out")


@click.command("router")
@_options
@click.option(
    "--config", "file", type=click.Path(dir_okay=False), help="Read this file instead of the usual ones."
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
def command(file: str | None, log_level: str | None, **values: Any) -> None:
    """Run the OpenAI-compatible HTTP front: one server prefills a request, another decodes it."""
    overrides: dict[str, Any] = {}
    for field in _FIELDS:
        value = values[field.name]
        if isinstance(value, tuple):
            _refuse_empty(field, value)
        if value not in (None, ()):
            overrides[field.key] = ",".join(value) if isinstance(value, tuple) else value
    if log_level is not None:
        overrides["log.level"] = log_level
    config = load_config(overrides, file=file, overrides_source="command line", overrides_are_text=True)
    apply_log_options(config.log, own_process=True)
    from kvferry.router import run

    run(config.router, config.transfer)

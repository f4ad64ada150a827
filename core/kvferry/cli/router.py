"""`kvferry router`: flags made from the `router` section of the settings; the work is in `kvferry.router`."""

from __future__ import annotations

from typing import Any

import click

from kvferry.cli.flags import fields_of, load_settings, settings_flags

_FIELDS = fields_of("router")


@click.command("router")
@settings_flags(_FIELDS)
def command(file: str | None, log_level: str | None, **values: Any) -> None:
    """Run the OpenAI-compatible HTTP front: one server prefills a request, another decodes it."""
    config = load_settings(_FIELDS, values, file=file, log_level=log_level)
    from kvferry.router import run

    run(config.router, config.transfer)

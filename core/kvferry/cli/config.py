"""`kvferry config`: effective settings with their sources, and the reference of all settings."""

from __future__ import annotations

import json

import click

from kvferry.config import all_fields, explain, explain_rows, load_config, to_markdown


@click.command("config")
@click.option(
    "--explain",
    "what",
    flag_value="explain",
    default=True,
    help="Each effective value and its source (default).",
)
@click.option(
    "--schema", "what", flag_value="schema", help="Every setting: default, allowed values, meaning."
)
@click.option("--markdown", "what", flag_value="markdown", help="The same as a page (docs/configuration.md).")
@click.option("--file", type=click.Path(dir_okay=False), help="Read this file instead of the usual ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(what: str, file: str | None, as_json: bool) -> None:
    """Show the effective settings, or all that exist."""
    if what == "markdown":
        click.echo(to_markdown(), nl=False)
    elif what == "schema":
        click.echo(json.dumps(_schema_rows(), indent=2) if as_json else _schema_text())
    elif as_json:
        rows = [row._asdict() for row in explain_rows(load_config(file=file))]
        click.echo(json.dumps(rows, indent=2))
    else:
        click.echo(explain(load_config(file=file)))


def _schema_rows() -> list[dict[str, str]]:
    return [
        {
            "key": field.key,
            "environment": field.environment,
            "default": field.show(field.default),
            "allowed": field.expected,
            "doc": field.doc,
        }
        for field in all_fields()
    ]


def _schema_text() -> str:
    lines = []
    for row in _schema_rows():
        lines.append(f"{row['key']} = {row['default']}   [{row['allowed']}; {row['environment']}]")
        lines.append(click.wrap_text(row["doc"], 100, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)

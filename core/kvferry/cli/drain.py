"""`kvferry drain`: moves what a node holds to others, so that it can go."""

from __future__ import annotations

import click

from kvferry.cli.using import TIMEOUT_S, admin_url, ask, node_flags
from kvferry.config import Config
from kvferry.errors import UnavailableError


@click.command("drain")
@click.option("--admin", metavar="URL", help="HTTP interface of a node [default: the one of this machine].")
@click.option(
    "--timeout", "timeout_s", default=60, show_default=True, type=click.IntRange(1, 86400),
    help="Seconds that moving may take.",
)  # fmt: skip
@node_flags
def command(*, config: Config, admin: str | None, timeout_s: int) -> int:
    """Move the objects of a node to other members; from then on it takes nothing new. It runs on until it is
    ended.

    Exit code 0: others hold all of it. 1: some had to be left behind.
    """
    base = admin_url(config, admin)
    answer = ask(config, base, f"/drain?timeout_s={timeout_s}", timeout_s + TIMEOUT_S, method="POST")
    left = answer.get("left")
    if not isinstance(left, int):
        raise UnavailableError(f"{base} is no node's HTTP interface")
    why = ": no other member took them in that time" if left else ""
    click.echo(f"drained, {left} object(s) left behind{why}", err=True)
    return 1 if left else 0

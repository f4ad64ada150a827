"""`kvferry node`: flags made from the `store` section of the settings; the work is in `kvferry.node`."""

from __future__ import annotations

from typing import Any

import click

from kvferry.cli.flags import fields_of, load_settings, settings_flags
from kvferry.config import parse_duration
from kvferry.errors import ConfigError

# what only programs that use a node need, and what --ssd says
_FIELDS = fields_of("store", without=("node", "timeout_s", "verify", "tenant", "ssd_directory", "ssd"))


@click.command("node")
@settings_flags(_FIELDS)
@click.option(
    "--ssd", metavar="DIR:SIZE", help="Keep what leaves memory in this directory, e.g. /mnt/nvme:1TiB."
)
@click.option(
    "--cluster",
    metavar="STORE",
    help="Where nodes find each other: embedded (this machine), or etcd://host:2379.",
)
@click.option(
    "--bind", metavar="HOST:PORT", help="Address for clients and other nodes [default 127.0.0.1:0]."
)
@click.option("--admin", metavar="HOST:PORT", help="Address of the HTTP interface [default 127.0.0.1:0].")
@click.option(
    "--drain",
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="After SIGTERM, how long to move objects to other nodes; 0s: leave at once.",
)
def command(
    *,
    file: str | None,
    log_level: str | None,
    ssd: str | None,
    cluster: str | None,
    bind: str | None,
    admin: str | None,
    drain: str,
    **values: Any,
) -> int:
    """Run a node: memory and SSD space for KV objects, for all engines of this machine and other nodes.

    Runs until SIGTERM or Ctrl-C.
    """
    directory, size = _split(ssd)
    drain_s = _duration(drain)
    config = load_settings(
        _FIELDS, values, file=file, log_level=log_level, store__ssd_directory=directory, store__ssd=size,
        cluster__store=cluster, transfer__bind=bind, admin__bind=admin,
    )  # fmt: skip
    from kvferry.node import run

    return run(config, drain_s=drain_s)


def _split(ssd: str | None) -> tuple[str | None, str | None]:
    if ssd is None:
        return None, None
    directory, colon, size = ssd.rpartition(":")
    if not colon or not directory or not size:
        raise ConfigError(f"--ssd {ssd} must be a directory and a size, e.g. /mnt/nvme:1TiB")
    return directory, size


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--drain {text}: {error}") from None

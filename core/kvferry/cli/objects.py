"""`kvferry ls`, `get`, `put` and `rm`: objects of the pool by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TextIO

import click

from kvferry.cli.using import node_flags
from kvferry.config import Config, format_size
from kvferry.errors import ConfigError, NotFoundError


def key_of(text: str) -> bytes:
    """Return the key meant by a word of the command line: `hex:0a1b...`, else the text itself."""
    if text.startswith("hex:"):
        try:
            return bytes.fromhex(text[4:])
        except ValueError:
            raise ConfigError(f"{text} is not hexadecimal") from None
    return text.encode()


def show_key(key: bytes) -> str:
    """Return a key as `key_of` takes it."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("hex:") else f"hex:{key.hex()}"


@click.command("ls")
@click.argument("prefix", default="")
@click.option(
    "--limit", default=1000, show_default=True, type=click.IntRange(1), help="Objects shown at most."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@node_flags
def ls(*, config: Config, prefix: str, limit: int, as_json: bool) -> None:
    """List the objects whose keys begin with PREFIX (hex:... for bytes)."""
    from kvferry.node.status import object_row
    from kvferry.store import open_store

    with open_store(config) as store:
        for index, info in enumerate(store.scan(key_of(prefix))):
            if index == limit:
                click.echo(f"more than {limit} objects; see --limit", err=True)
                return
            if as_json:
                click.echo(json.dumps(object_row(info)))
            else:
                tags = f"  [{', '.join(info.tags)}]" if info.tags else ""
                click.echo(f"{format_size(info.nbytes):>12}  {info.tier:<4}  {show_key(info.key)}{tags}")


@click.command("get")
@click.argument("key")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False), help="Write to this file, not standard output."
)
@node_flags
def get(*, config: Config, key: str, output: str | None) -> None:
    """Write the object under KEY (hex:... for bytes) to standard output or a file."""
    from kvferry.store import open_store

    if not output:
        _need(sys.stdout, "output", "name a file with --output")
    with open_store(config) as store:
        value = store.get(key_of(key))
    if value is None:
        raise NotFoundError(f"there is no object under {key}")
    if output:
        try:
            Path(output).write_bytes(value)
        except OSError as error:
            raise ConfigError(f"cannot write {output}: {error.strerror}") from error
    else:
        sys.stdout.buffer.write(value)


def _need(stream: TextIO | None, what: str, advice: str) -> None:
    """Raise ConfigError for a standard stream that whoever called us has closed."""
    if stream is None:
        raise ConfigError(f"standard {what} is closed: {advice}")


@click.command("put")
@click.argument("key")
@click.argument("source", type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--replicas",
    default=0,
    type=click.IntRange(0, 16),
    help="Nodes that shall hold it [default: as the cluster's setting].",
)
@click.option("--ttl", "ttl_s", type=click.FloatRange(min=0.001), help="Seconds until it is absent again.")
@click.option("--tag", "tags", multiple=True, help="May be given several times.")
@node_flags
def put(
    *, config: Config, key: str, source: str, replicas: int, ttl_s: float | None, tags: tuple[str, ...]
) -> int:
    """Store the file SOURCE (- for standard input) under KEY (hex:... for bytes).

    Exit code 0: done. 1: stored, but on fewer nodes than --replicas asked for.
    """
    from kvferry.store import open_store

    if source == "-":
        _need(sys.stdin, "input", "name a file as SOURCE")
    try:
        value = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    with open_store(config) as store:
        result = store.put(key_of(key), value, replicas=replicas, ttl_s=ttl_s, tags=tags)
    what = "stored" if result.created else "was there already"
    short = result.replicas < replicas
    where = (
        f"{result.replicas} of the {replicas} node(s) asked for" if short else f"{result.replicas} node(s)"
    )
    click.echo(f"{format_size(len(value))} {what}, on {where}", err=True)
    return 1 if short else 0


@click.command("rm")
@click.argument("keys", nargs=-1)
@click.option("--tag", help="Remove all objects with this tag that living nodes hold.")
@node_flags
def rm(*, config: Config, keys: tuple[str, ...], tag: str | None) -> int:
    """Remove the objects under KEYS (hex:... for bytes), or all with a tag.

    Exit code 0: they are removed. 1: one of the keys, or all with the tag, were absent; the rest is removed.
    """
    from kvferry.store import open_store

    if bool(keys) == bool(tag):
        raise click.UsageError("name either keys or a tag")
    with open_store(config) as store:
        if tag:
            count = store.remove_tag(tag)
            click.echo(f"{count} object(s) removed", err=True)
            return 0 if count else 1
        wanted = [key_of(key) for key in keys]
        there = store.exists_many(wanted)
        errors = [error for error in store.remove_many(wanted) if error is not None]
    for key, found in zip(keys, there, strict=True):
        if not found:
            click.echo(f"{key}: absent", err=True)
    if errors:
        raise errors[0]
    return 0 if all(there) else 1

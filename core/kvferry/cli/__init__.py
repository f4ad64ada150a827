"""The `kvferry` command. Subcommands are imported only when they are used."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from kvferry.errors import KVFerryError

# name -> (module that holds `command`, or module:function; line shown in the help)
_COMMANDS: dict[str, tuple[str, str]] = {
    "config": ("kvferry.cli.config", "Show the effective settings, or all that exist."),
    "doctor": ("kvferry.cli.doctor", "Say what this host can do, and how to fix what it cannot."),
    "drain": ("kvferry.cli.drain", "Move what a node holds to other nodes, so that it can go."),
    "get": ("kvferry.cli.objects:get", "Write an object of the pool to standard output or a file."),
    "ls": ("kvferry.cli.objects:ls", "List objects of the pool."),
    "node": ("kvferry.cli.node", "Run a node of the pool: memory and SSD space for KV objects."),
    "put": ("kvferry.cli.objects:put", "Store a file in the pool."),
    "rm": ("kvferry.cli.objects:rm", "Remove objects from the pool."),
    "router": ("kvferry.cli.router", "Run the HTTP front of prefill and decode servers."),
    "sdk": ("kvferry.cli.sdk", "Say where the C and C++ interface is installed."),
    "status": ("kvferry.cli.status:status", "Show what a node holds, its cluster, and what is wrong."),
    "top": ("kvferry.cli.status:top", "Show live what a node holds and does."),
    "topology": ("kvferry.cli.topology", "Show NUMA nodes, network interfaces and accelerators as a tree."),
}


class _LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name or "command")
        assert isinstance(command, click.Command)  # noqa: S101  (states the type of a module's attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_COMMANDS.items())])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"kvferry {version('kvferry')}")
        ctx.exit()


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def _group(debug: bool) -> None:
    """Make the KV cache of LLM serving engines move and last."""
    del debug


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 a check failed, 2 an error (one line on stderr)."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        result = _group.main(args=arguments, prog_name="kvferry", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except KVFerryError as error:
        if "--debug" in arguments:
            raise
        click.echo(f"error: {error}", err=True)
    except click.ClickException as error:
        error.show()
    except OSError as error:  # of the output: a full disk, say
        if "--debug" in arguments:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it would fail again at exit
        if isinstance(error, BrokenPipeError):  # whoever read it has seen enough
            return 1
        click.echo(f"error: cannot write what was asked for: {error.strerror or error}", err=True)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        return 130
    return 2

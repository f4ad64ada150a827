"""`kvferry doctor`: what this host can do, and the command that fixes what it cannot."""

from __future__ import annotations

import json
import platform

import click

from kvferry.cli.host import Check, Level, collect
from kvferry.cli.host.native import package_version
from kvferry.cli.host.report import can_run

_COLOURS = {Level.OK: "green", Level.NOTE: "blue", Level.WARNING: "yellow", Level.ERROR: "red"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> int:
    """Say what this host can do, and how to fix what it cannot.

    Exit code 0: KV caches can be moved here. 1: something must be fixed first.
    """
    checks = collect()
    click.echo(_json(checks) if as_json else _text(checks))
    return 0 if can_run(checks) else 1


def _host() -> str:
    uname = platform.uname()
    return f"Python {platform.python_version()}, {uname.system} {uname.release} {uname.machine}"


def _json(checks: list[Check]) -> str:
    document = {
        "version": package_version(),
        "host": _host(),
        "ok": can_run(checks),
        "checks": [check.as_dict() for check in checks],
    }
    return json.dumps(document, indent=2)


def _text(checks: list[Check]) -> str:
    width = max(len(check.name) for check in checks)
    lines = [f"kvferry {package_version()}, {_host()}", ""]
    for check in checks:
        level = click.style(f"{check.level.value:<8}", fg=_COLOURS[check.level])
        lines.append(f"{level} {check.name:<{width}}  {check.summary}")
        if check.fix:
            lines.append(f"{'':9}{'':{width}}  fix: {check.fix}")
    errors = sum(check.level is Level.ERROR for check in checks)
    warnings = sum(check.level is Level.WARNING for check in checks)
    verdict = "KV caches can be moved on this host" if not errors else "something must be fixed first"
    lines += ["", f"{verdict}: {errors} error(s), {warnings} warning(s)."]
    return "\n".join(lines)

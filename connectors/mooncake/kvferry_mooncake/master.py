"""`mooncake_master` on KVFerry: a node that listens where start scripts expect Mooncake's master."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from kvferry.config import apply_log_options, load_config
from kvferry.errors import KVFerryError
from kvferry_mooncake.codes import logger

_DRAIN_S = 30.0  # as `kvferry node` has it


def main(argv: Sequence[str] | None = None) -> int:
    """Run a node until SIGTERM or Ctrl-C; return an exit code.

    Its memory and all else is what KVFerry's settings say (`KVFERRY_STORE_DRAM`). Of the master's flags
    three are obeyed, the others are named in the log.
    """
    parser = argparse.ArgumentParser(prog="mooncake_master", description=__doc__, allow_abbrev=False)
    _add(parser, "rpc_address", default="127.0.0.1", help="address to listen on")
    _add(parser, "rpc_port", "port", type=int, default=50051, help="port to listen on")
    _add(parser, "metrics_port", type=int, default=9003, help="port of the node's HTTP interface")
    given, others = parser.parse_known_args(argv)
    try:
        config = load_config(
            {
                "transfer.bind": f"{given.rpc_address}:{given.rpc_port}",
                "admin.bind": f"127.0.0.1:{given.metrics_port}",
            },
            overrides_source="command line",
        )
        apply_log_options(config.log, own_process=True)
        if others:
            logger.warning("without effect on a node of KVFerry: %s", " ".join(others))
        from kvferry.node import run

        return run(config, drain_s=_DRAIN_S)
    except KVFerryError as error:
        print(f"mooncake_master: {error}", file=sys.stderr)  # noqa: T201  (a command)
        return 1


def _add(parser: argparse.ArgumentParser, *names: str, **options: Any) -> None:
    """Add a flag in the forms that Mooncake's programs take: one dash or two."""
    parser.add_argument(*(f"{dash}{name}" for name in names for dash in ("--", "-")), **options)


if __name__ == "__main__":
    sys.exit(main())

"""LMDeploy's command line, with one more migration backend: `python -m kvferry_lmdeploy serve api_server ...
--migration-backend KVFerry`.

LMDeploy's list of backends is closed: an Enum, and the flag's choices. This opens both in the process of the
command alone, and runs LMDeploy's own command then.
"""

from __future__ import annotations

import sys
from typing import Any

from kvferry.errors import UnsupportedError
from kvferry_lmdeploy import _support
from kvferry_lmdeploy.choice import MIGRATION_BACKEND, NAME


def main() -> None:
    """Run `lmdeploy` with the arguments of this process; exits with 2 and one sentence where it cannot."""
    try:
        _support.check_installed()
    except UnsupportedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    from lmdeploy.cli import run, serve, utils

    flag = utils.ArgumentHelper.migration_backend

    def with_ours(parser: Any) -> Any:
        action = flag(parser)
        action.choices = [*action.choices, NAME]
        return action

    utils.ArgumentHelper.migration_backend = staticmethod(with_ours)
    serve.MigrationBackend = {**serve.MigrationBackend.__members__, NAME: MIGRATION_BACKEND}
    run()


if __name__ == "__main__":
    main()

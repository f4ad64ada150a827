"""What stands for us where LMDeploy names its migration backends.

LMDeploy's backends are the members of an Enum; what it reads of the chosen one is `.name`, in the worker
that looks the class up in its registry. An object of our own can take a member's place: it travels to the
workers like a member, by pickling, whatever starts them, and registers the class when its name is asked for.
So nothing of LMDeploy is changed, no process needs a start-up hook, and who did not choose us does not load
us.
"""

from __future__ import annotations

from kvferry_lmdeploy import _support

NAME = "KVFerry"


class Choice:
    """As a member of LMDeploy's `MigrationBackend`. There is one: `MIGRATION_BACKEND`."""

    @property
    def name(self) -> str:
        """What the backend is called in LMDeploy's registry, where it is from now on.

        Raises UnsupportedError (this LMDeploy is not supported).
        """
        _support.check_installed()
        from lmdeploy.pytorch.disagg.backend.backend import MIGRATION_BACKENDS

        if NAME not in MIGRATION_BACKENDS.module_dict:
            from kvferry_lmdeploy.backend import Backend

            MIGRATION_BACKENDS.register_module(name=NAME, module=Backend)
        return NAME

    def __reduce__(self) -> str:
        return "MIGRATION_BACKEND"

    def __repr__(self) -> str:
        return f"<MigrationBackend.{NAME}>"


MIGRATION_BACKEND = Choice()
